"""What displays say, in English and Chinese: the states of a run, its figures, and each event as a sentence. Numbers,
times, and what platforms, stores and exceptions say are the same in both.
"""
# ruff: noqa: RUF001  # Chinese has a comma and a colon of its own

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from colabkeep.checkpoint.journal import Line
from colabkeep.core.arguments import duration_text
from colabkeep.core.events import DurabilityTold, Event, StepDone, StoreDegraded, journal_line
from colabkeep.core.language import said
from colabkeep.core.policies import SAYINGS
from colabkeep.session.state import as_number
from colabkeep.ui.text import local_time, size_text

Words: TypeAlias = Mapping[str, str]

EN: Words = {
    "language": "en",
    # The state of the panel, by its name: a few words, and a sentence.
    "chip.starting": "STARTING",
    "chip.fresh": "TRAINING",
    "chip.resumed": "RESUMED",
    "chip.saving": "TRAINING · saving",
    "chip.uploading": "TRAINING · uploading",
    "chip.saved": "TRAINING · checkpoint saved",
    "chip.durable": "TRAINING · checkpoint saved",
    "chip.degraded": "TRAINING · saved locally only",
    "chip.unsaved": "TRAINING · NOT SAVED",
    "chip.ending": "SESSION ENDING SOON",
    "chip.nan": "LOSS IS {word}",
    "chip.interrupted": "STOPPED",
    "chip.finished": "FINISHED",
    "chip.diverged": "ENDED WITH {word}",
    "chip.failed": "FAILED",
    "says.starting": "Looking for an earlier checkpoint of this run.",
    "says.fresh": "This run has no checkpoint in {storage} yet: training starts from zero. Nothing is safe before the "
    "first save.",
    "says.resumed": "Resumed from step {step}. It was saved {age} earlier, so at most that much training is "
    "repeated. {how}",
    "how.exact": "Model, optimizer, random streams and position in the data are as they were.",
    "how.inexact": "Not bit for bit: {reason}.",
    "says.saving": "The state at step {step} is being saved; training continues. {back}",
    "says.uploading": "The checkpoint of step {step} is on this machine's disk and is being uploaded to {place}"
    "{waiting}. {back}",
    "waiting": " ({size} left at {speed}/s)",
    "says.saved": "The checkpoint of step {step} is saved: {proof}.",
    "says.durable": "The checkpoint of step {step} is safe: {proof}.",
    "proof.confirmed": "upload to {place} verified (checksum matches)",
    "proof.sent": "{place} has received all of it",
    "proof.unknown": "{place} has received all of it, but cannot confirm what it holds",
    "proof.local": "kept only if {place} survives this machine; colabkeep cannot check that",
    "back": "If this machine vanished now, training would resume from step {step}.",
    "back.if": "If this machine vanished now, training would resume from step {step}, if {place} survives.",
    "back.none": "If this machine vanished now, training would start again.",
    "says.degraded": "Since {since} UTC: {detail}",
    "says.temporary": "Checkpoints go to {place}, which is lost with this machine: nothing of this training would "
    "remain.",
    "says.ending": "This session ends in at most {left}. {then}",
    "then.ends": "Training stops by itself before that, so that nothing is lost. Run the notebook again to continue.",
    "then.goes-on": "The training is saved now, and continues for as long as the machine lives.",
    "loss.nan": "NaN",
    "loss.inf": "INFINITE",
    "loss.unknown": "NaN OR INFINITE",
    "says.nan": "The loss has not been a finite number since step {since} ({word}). Unless it recovers, all further "
    "training is wasted. {back}",
    "says.diverged": "Ended at step {step}. The loss has not been a finite number since step {since} ({word}), so "
    "these "
    "weights are useless. {back}",
    "back.good": 'To go back, run the cell with resume="{checkpoint}", the newest checkpoint from before. It is kept.',
    "back.no-good": "There is no checkpoint from before that step.",
    "says.interrupted": "Stopped at step {step} ({reason}). {kept} Run the same cell again to continue.",
    "says.finished": "Finished at step {step} after {seconds} of training in {sessions} session(s). {kept}",
    "says.complete": "Complete since {since} UTC, at step {step}: nothing was trained. {kept}",
    "says.failed": "Failed at step {step}: {error}. {kept} Fix the cause and run the same cell again to continue.",
    "kept": "Newest checkpoint: step {step} ({level}).",
    "kept.none": "There is no checkpoint.",
    "reason.interrupt": "you interrupted it",
    "reason.sigterm": "the service ended the process",
    "reason.sighup": "the terminal was closed",
    "reason.max_time": "its time limit was reached",
    "reason.session_end": "the session was about to end",
    "reason.left": "the loop was left early",
    "error.unknown": "an unknown error",
    # What the check says of the accelerator.
    "verdict.keep": "{cards}",
    "verdict.reconnect": "{cards}: reconnect for a better one",
    "verdict.switch": "{cards}: choose another accelerator",
    "verdict.enable": "No GPU: turn one on",
    "verdict.unusable": "{cards}: cannot be used",
    # How far it is, what is safe, how long the session lasts.
    "progress": "{share} · {at}{speed}{trained}{left}",
    "at.step": "step {step}",
    "at.steps": "step {step} of {total}",
    "at.epoch": "epoch {epoch} of {epochs} · ",
    "speed": " · {speed} steps/s",
    "speed.samples": " · {speed} samples/s",
    "speed.tokens": " · {speed} tokens/s",
    "trained": " · trained for {seconds}",
    "left": " · about {left} to go",
    "saved": "Saved up to step {step} · unsaved progress: {steps} steps ({seconds})",
    "safe": "Safe up to step {step} · unsaved progress: {steps} steps ({seconds})",
    "safe.asked": "Checking which checkpoint the storage has",
    "safe.none": "Nothing is safe yet · unsaved progress: {steps} steps ({seconds})",
    "session": "Session time left: at most {left} (an estimate). {source}",
    "session.unknown": "Session time left: unknown.",
    **SAYINGS,
    "saves": "{chosen}. {last}",
    "saves.last": "The last save paused training for {stall}{why}.",
    "saves.why": " ({copy})",
    "checkpoints": "Checkpoints, newest first",
    "column.step": "step",
    "column.size": "size",
    "column.level": "state",
    "column.where": "where",
    "level.captured": "in memory",
    "level.local": "on this machine's disk",
    "level.unknown": "sent, cannot be confirmed",
    "level.sent": "sent",
    "level.confirmed": "upload verified",
    "where.here": "this machine",
    "exactness.": "What a resume restores: not known yet",
    "exactness.exact": "Exact: the same bits after a resume",
    "exactness.mostly": "Exact after a resume, except for what is named here",
    "exactness.course": "Equivalent after a resume, but not the same bits: why",
    "events": "Last events",
    "as-of": "As of {time} UTC. If that is long ago, this is not live: colabkeep.report({call}) shows the whole "
    "history.",
    "status": "How it is now: {page}",
    "record": "The same panel, which stays readable when this notebook is opened again",
    # What is measured of the training.
    "numbers.loss": "loss {loss}",
    "numbers.smooth": "loss {smooth} (last {loss})",
    "numbers.lr": "learning rate {rate}",
    "numbers.grad": "gradient norm {norm}",
    "usage.card": "GPU{number}: {busy}{used} of {total}",
    "usage.busy": "{busy} busy, ",
    "usage.memory": "RAM: {used} of {total}",
    "usage.waits": "The GPU waits: {share} % of the time goes into reading batches. A larger num_workers in the "
    "DataLoader may help.",
    "epochs": "Epochs",
    "epochs.best": "Epochs · ★ best {name}: {value}, epoch {epoch}",
    "column.epoch": "epoch",
    "column.seconds": "time",
    "storage": "Checkpoints and session",
    # The picture of the loss, in words.
    "curve.empty": "loss: no value yet",
    "curve.loss": "training loss",
    "curve.best": "best",
    "curve.log": "logarithmic",
    "curve.measured": "{name}: last {last}, lowest {lowest} at {at}",
    "curve.series": "{name}: last {last}",
    "curve.legend_saves": "▲ safe, △ not yet",
    "curve.described": "loss, {count} points from step {begin} to {end}: first {first}, last {last}, lowest {lowest} "
    "at {at}",
    "curve.gaps": "not a number at step {steps}",
    "curve.more": "and {count} more",
    "curve.stale": "No update for {seconds} s: not live",
    "curve.quiet": "No update for {seconds} s",
    "mark.resumed": "resumed at {step}",
    "mark.broken": "NaN at {step}",
    "mark.safe": "{step} safe",
    "mark.local": "{step} not yet safe",
    # Events.
    "started": "run {run!r}, checkpoints in {storage}",
    "complete": "complete since {since}, at step {step}: nothing is trained. To train longer, raise {length}. For a "
    "new "
    "training, choose another run_name",
    "restored": "resumed from {at}, saved {age} ago: at most that much training is repeated",
    "restored.epoch": "epoch {epoch}, step {step}",
    "restored.step": "step {step}",
    "inexact": "not bit for bit: {reason}",
    "loss.broke": "THE LOSS IS {word} since step {step}. Unless it recovers, all further training is wasted.\n{back}",
    "loss.infinite": "infinite",
    "loss.back": 'To go back, stop training and run the cell with resume="{checkpoint}", the newest checkpoint from '
    "before. It is kept.",
    "loss.recovered": "the loss is a finite number again since step {step}",
    "catching-up": "waiting for the upload to {url}{left}, for at most {seconds} more (flush_timeout=…)",
    "catching-up.left": ", {size} left",
    "catching-up.speed": " at {speed} a second",
    "skipped": "skipped checkpoint {checkpoint}: {reason}",
    "epoch": "epoch {epoch} done, step {step}{metrics}",
    "postponed": "the save due at step {step} is postponed: the previous one is still being written. Saves come faster "
    "than the storage can take them, so some are left out (said once)",
    "failing": "NOT SAVED at step {step}: {error}\nTraining continues; the next attempt is in {seconds}.",
    "deadline": "this session ends in at most {seconds}: {then}",
    "deadline.ends": "training stops here, so that nothing is lost. Run the notebook again to continue.",
    "deadline.saves": "it is saved now{takes}, and continues for as long as the machine lives",
    "deadline.takes": " (safe in about {seconds})",
    "space": "{free} are free in {url}, and a save takes {size}: {then}",
    "space.keeps": "only {keeps} checkpoint(s) are kept from now on. Make room there to keep more",
    "space.next": "the next one may not fit. Make room there, or keep fewer (keep_last=…)",
    "space.full": "it will be FULL between {hour} and {next} on {day} at this run's pace. Make room there, or keep "
    "fewer (keep_last=…)",
    "ended": "ended at {where}. The loss has not been a finite number since step {since}, so these weights are "
    "useless.",
    "finished": "finished at {where}",
    "stopped": "stopped ({reason}) at {where}. Run the same cell again to continue.",
    "where": "step {step}; newest checkpoint: {checkpoint}",
    "none": "none",
}

ZH: Words = {
    "language": "zh",
    "chip.starting": "正在开始",
    "chip.fresh": "训练中",
    "chip.resumed": "已恢复",
    "chip.saving": "训练中 · 正在保存",
    "chip.uploading": "训练中 · 正在上传",
    "chip.saved": "训练中 · 检查点已保存",
    "chip.durable": "训练中 · 检查点已保存",
    "chip.degraded": "训练中 · 仅保存在本机",
    "chip.unsaved": "训练中 · 未能保存",
    "chip.ending": "会话即将结束",
    "chip.nan": "损失为 {word}",
    "chip.interrupted": "已停止",
    "chip.finished": "已完成",
    "chip.diverged": "已结束，损失为 {word}",
    "chip.failed": "失败",
    "says.starting": "正在查找此训练的检查点。",
    "says.fresh": "{storage} 中还没有此训练的检查点，因此从零开始。第一次保存之前，进度还没有保障。",
    "says.resumed": "已从第 {step} 步恢复。该检查点是 {age} 前保存的，因此最多重复这段训练。{how}",
    "how.exact": "模型、优化器、随机数状态和数据读取位置都与保存时相同。",
    "how.inexact": "并非逐位一致：{reason}。",
    "says.saving": "正在保存第 {step} 步的状态，训练继续进行。{back}",
    "says.uploading": "第 {step} 步的检查点已在本机磁盘上，正在上传到 {place}{waiting}。{back}",
    "waiting": "（剩余 {size}，速度 {speed}/s）",
    "says.saved": "第 {step} 步的检查点已保存：{proof}。",
    "says.durable": "第 {step} 步的检查点已安全保存：{proof}。",
    "proof.confirmed": "已上传到 {place}，校验和一致",
    "proof.sent": "已全部上传到 {place}",
    "proof.unknown": "已全部上传到 {place}，但对方无法确认所存内容",
    "proof.local": "只有 {place} 不随这台机器消失时才有效，colabkeep 无法判断这一点",
    "back": "如果这台机器现在断开，训练可从第 {step} 步恢复。",
    "back.if": "如果这台机器现在断开，只要 {place} 还在，训练就可从第 {step} 步恢复。",
    "back.none": "如果这台机器现在断开，训练只能从头开始。",
    "says.degraded": "自 {since} UTC 起：{detail}",
    "says.temporary": "检查点保存在 {place}，它会随这台机器一起消失，届时此次训练的成果将全部丢失。",
    "says.ending": "此会话最多再过 {left} 就会结束。{then}",
    "then.ends": "训练会在此之前自动停止，不会丢失进度。再次运行笔记本即可继续。",
    "then.goes-on": "现在会保存一次；只要机器还在，训练就会继续。",
    "loss.nan": "NaN",
    "loss.inf": "无穷大",
    "loss.unknown": "NaN 或无穷大",
    "says.nan": "自第 {since} 步起，损失不再是有限数（{word}）。除非恢复正常，继续训练没有意义。{back}",
    "says.diverged": "训练在第 {step} 步结束。自第 {since} 步起，损失不再是有限数（{word}），因此这些权重无法使用。"
    "{back}",
    "back.good": '要退回，请加上 resume="{checkpoint}" 再次运行该单元格：这是出问题之前最新的检查点，会一直保留。',
    "back.no-good": "在那一步之前没有检查点。",
    "says.interrupted": "在第 {step} 步停止（{reason}）。{kept}再次运行同一单元格即可继续。",
    "says.finished": "在第 {step} 步完成，共训练 {seconds}，{sessions} 个会话。{kept}",
    "says.complete": "此训练已于 {since} UTC 完成，共 {step} 步：这次没有训练。{kept}",
    "says.failed": "在第 {step} 步出错：{error}。{kept}解决问题后再次运行同一单元格即可继续。",
    "kept": "最新的检查点：第 {step} 步（{level}）。",
    "kept.none": "没有检查点。",
    "reason.interrupt": "由你中断",
    "reason.sigterm": "平台结束了进程",
    "reason.sighup": "终端已关闭",
    "reason.max_time": "达到了时间上限",
    "reason.session_end": "会话即将结束",
    "reason.left": "训练循环提前退出",
    "error.unknown": "未知错误",
    "verdict.keep": "{cards}",
    "verdict.reconnect": "{cards}：建议重新连接，换一块更好的",
    "verdict.switch": "{cards}：建议选择其他加速器",
    "verdict.enable": "没有 GPU：请先启用",
    "verdict.unusable": "{cards}：无法使用",
    "progress": "{share} · {at}{speed}{trained}{left}",
    "at.step": "第 {step} 步",
    "at.steps": "第 {step} / {total} 步",
    "at.epoch": "第 {epoch} / {epochs} 轮 · ",
    "speed": " · {speed} 步/秒",
    "speed.samples": " · {speed} 样本/秒",
    "speed.tokens": " · {speed} token/秒",
    "trained": " · 已训练 {seconds}",
    "left": " · 大约还需 {left}",
    "saved": "已保存至第 {step} 步 · 若此刻断开将丢失：{steps} 步（{seconds}）",
    "safe": "已安全保存至第 {step} 步 · 若此刻断开将丢失：{steps} 步（{seconds}）",
    "safe.asked": "正在向存储查询有哪些检查点",
    "safe.none": "还没有安全保存的进度 · 若此刻断开将丢失：{steps} 步（{seconds}）",
    "session": "会话剩余时间：最多 {left}（估计）。{source}",
    "session.unknown": "会话剩余时间：未知。",
    "cadence": "每 {interval} 保存一次：这里每次保存耗时 {cost}，会话平均约持续 {session}{carried}{then}",
    "cadence.little": "不到 1 ms",
    "cadence.carried": "，存储每 {carried} 才能接收一次",
    "cadence.overhead": "；更频繁会占用超过 {overhead} % 的时间（overhead=…）",
    "cadence.storage": "；不会超过存储的接收速度",
    "cadence.budget": "；再频繁就会超出该服务的限额（见 colabkeep doctor --storage=…）",
    "cadence.behind": "；这比保存更慢，因此每次完成后接着传最新的",
    "cadence.share": "；这占用 {share} % 的时间",
    "cadence.risked": "，但间隔更长风险太大",
    "cadence.becomes": "，并会逐渐减少",
    "saves": "{chosen}。{last}",
    "saves.last": "上一次保存使训练暂停 {stall}{why}。",
    "saves.why": "（{copy}）",
    "checkpoints": "检查点，最新的在前",
    "column.step": "步",
    "column.size": "大小",
    "column.level": "状态",
    "column.where": "位置",
    "level.captured": "在内存中",
    "level.local": "在本机磁盘上",
    "level.unknown": "已上传，无法确认",
    "level.sent": "已上传",
    "level.confirmed": "上传已确认",
    "where.here": "本机",
    "exactness.": "恢复后能还原到什么程度：尚不清楚",
    "exactness.exact": "精确：恢复后逐位一致",
    "exactness.mostly": "恢复后逐位一致，但以下情况除外",
    "exactness.course": "恢复后训练等效，但并非逐位一致，原因如下",
    "events": "最近的事件",
    "as-of": "截至 {time} UTC。如果时间已久，说明面板已不再更新：请用 colabkeep.report({call}) 查看完整记录。",
    "status": "当前状态：{page}",
    "record": "同一面板的静态版本，重新打开笔记本时仍可查看",
    "numbers.loss": "损失 {loss}",
    "numbers.smooth": "损失 {smooth}（最近一次 {loss}）",
    "numbers.lr": "学习率 {rate}",
    "numbers.grad": "梯度范数 {norm}",
    "usage.card": "GPU{number}：{busy}显存 {used} / {total}",
    "usage.busy": "利用率 {busy}，",
    "usage.memory": "内存：{used} / {total}",
    "usage.waits": "GPU 在等待数据：读取批次占用了 {share} % 的时间，可以尝试增大 DataLoader 的 num_workers。",
    "epochs": "各轮指标",
    "epochs.best": "各轮指标 · ★ 最佳 {name}：{value}（第 {epoch} 轮）",
    "column.epoch": "轮",
    "column.seconds": "用时",
    "storage": "检查点与会话",
    "curve.empty": "损失：还没有数值",
    "curve.loss": "训练损失",
    "curve.best": "最佳",
    "curve.log": "对数坐标",
    "curve.measured": "{name}：最后 {last}，最低 {lowest}（第 {at} 步）",
    "curve.series": "{name}：最后 {last}",
    "curve.legend_saves": "▲ 已安全，△ 尚未",
    "curve.described": "损失，从第 {begin} 步到第 {end} 步共 {count} 个点：最初 {first}，最后 {last}，"
    "最低 {lowest}（第 {at} 步）",
    "curve.gaps": "在第 {steps} 步出现 NaN",
    "curve.more": "以及另外 {count} 个",
    "curve.stale": "{seconds} 秒没有更新：已不是实时状态",
    "curve.quiet": "{seconds} 秒没有更新",
    "mark.resumed": "从 {step} 恢复",
    "mark.broken": "{step} 出现 NaN",
    "mark.safe": "{step} 已安全",
    "mark.local": "{step} 尚未安全",
    "started": "训练 {run!r}，检查点保存在 {storage}",
    "complete": "已于 {since} 完成，共 {step} 步：这次没有训练。要继续训练，请增大 {length}；要重新训练，请换一个 "
    "run_name",
    "restored": "已从{at}恢复，该检查点是 {age} 前保存的：最多重复这段训练",
    "restored.epoch": "第 {epoch} 轮第 {step} 步",
    "restored.step": "第 {step} 步",
    "inexact": "并非逐位一致：{reason}",
    "loss.broke": "自第 {step} 步起损失为 {word}。除非恢复正常，继续训练没有意义。\n{back}",
    "loss.infinite": "无穷大",
    "loss.back": '要退回，请停止训练，加上 resume="{checkpoint}" 再次运行该单元格：这是出问题之前最新的检查点，'
    "会一直保留。",
    "loss.recovered": "从第 {step} 步起，损失恢复为有限数",
    "catching-up": "正在等待上传到 {url}{left}，最多再等 {seconds}（flush_timeout=…）",
    "catching-up.left": "，剩余 {size}",
    "catching-up.speed": "，每秒 {speed}",
    "skipped": "已跳过检查点 {checkpoint}：{reason}",
    "epoch": "第 {epoch} 轮完成，第 {step} 步{metrics}",
    "postponed": "第 {step} 步的保存被推迟：上一次保存仍在写入。保存的频率超过了存储的速度，"
    "部分保存会被跳过（只提示一次）",
    "failing": "第 {step} 步未能保存：{error}\n训练继续进行，{seconds} 后重试。",
    "deadline": "此会话最多再过 {seconds} 就会结束：{then}",
    "deadline.ends": "训练在此停止，不会丢失进度。再次运行笔记本即可继续。",
    "deadline.saves": "现在保存一次{takes}；只要机器还在，训练就会继续",
    "deadline.takes": "（约 {seconds} 后安全）",
    "space": "{url} 剩余 {free}，一次保存需要 {size}：{then}",
    "space.keeps": "从现在起只保留 {keeps} 个检查点。腾出空间即可保留更多",
    "space.next": "下一次可能放不下。请腾出空间，或少保留一些（keep_last=…）",
    "space.full": "按目前的速度，{day} {hour} 到 {next} 之间将会用满。请腾出空间，或少保留一些（keep_last=…）",
    "ended": "结束于{where}。自第 {since} 步起，损失不再是有限数，因此这些权重无法使用。",
    "finished": "完成于{where}",
    "stopped": "停止（{reason}）于{where}。再次运行同一单元格即可继续。",
    "where": "第 {step} 步；最新的检查点：{checkpoint}",
    "none": "无",
}

_FOLDER_EN: Words = {
    "language": "en",
    # A folder that another program writes: versions in place of checkpoints, and nothing of a training.
    "chip.fresh": "KEEPING",
    "chip.resumed": "PUT BACK",
    "chip.saving": "KEEPING · making a version",
    "chip.uploading": "KEEPING · uploading",
    "chip.saved": "KEEPING · version kept",
    "chip.durable": "KEEPING · version safe",
    "chip.degraded": "KEEPING · on this machine only",
    "chip.unsaved": "KEEPING · NO NEW VERSION",
    "says.starting": "Looking for an earlier version of this folder.",
    "says.fresh": "No version has been made in this session yet. The first one comes when files have changed and are "
    "at rest.",
    "says.resumed": "Version {step} was put back, byte for byte. It was made {age} earlier.",
    "says.saving": "Version {step} is being made; the program goes on. {back}",
    "says.uploading": "Version {step} is on this machine's disk and is being uploaded to {place}{waiting}. {back}",
    "says.saved": "Version {step} is kept: {proof}.",
    "says.durable": "Version {step} is safe: {proof}.",
    "back": "If this machine vanished now, version {step} would come back.",
    "back.if": "If this machine vanished now, version {step} would come back, if {place} survives.",
    "back.none": "If this machine vanished now, nothing would come back.",
    "says.temporary": "Versions go to {place}, which is lost with this machine: nothing of this folder would remain.",
    "then.ends": "The program is interrupted before that, so that its last version is whole. Run the same again to go "
    "on.",
    "then.goes-on": "A version is made now if the files are at rest, and the program goes on for as long as the "
    "machine lives.",
    "says.interrupted": "Stopped ({reason}). {kept} Run the same again to go on.",
    "says.finished": "The program has ended. {kept}",
    "says.failed": "The program failed: {error}. {kept} Run the same again to go on from there.",
    "kept": "Newest version: {step} ({level}).",
    "kept.none": "There is no version.",
    "folder.at": "{folder} · version {step}{changed}{waits}",
    "folder.none": "{folder} · no version yet{changed}{waits}",
    "folder.changed": " · {count} file(s) have changed since",
    "folder.waits": ", and wait: {waits}",
    "folder.same": " · nothing has changed since",
    "safe": "Safe: version {step}{lost}",
    "saved": "Kept: version {step}{lost}",
    "safe.none": "Nothing is safe yet",
    "safe.asked": "Checking which versions the storage has",
    "lost": " · would be lost now: {lost}",
    "lost.none": " · nothing would be lost now",
    "checkpoints": "Versions, newest first",
    "column.step": "version",
    "exactness.": "What comes back",
    # Events.
    "started": "the folder {keeps} is kept as {run!r} in {storage}",
    "restored": "{at} was put back. It was made {age} ago",
    "restored.step": "version {step}",
    "made": "version {step} is made: {size}, {written} of that new",
    "waiting-for": "no version could be made in this session yet: {waits}",
    "postponed": "version {step} is postponed: the one before is still being written",
    "failing": "NO VERSION could be made: {error}\nThe program goes on; the next attempt is in {seconds}.",
    "deadline.ends": "the program is interrupted now, so that its last version is whole. Run the same again to go on.",
    "deadline.saves": "a version is made now if the files are at rest{takes}, and the program goes on for as long as "
    "the machine lives",
    "space": "{free} are free in {url}, and a version takes up to {size}: {then}",
    "space.keeps": "only {keeps} version(s) are kept from now on. Make room there to keep more",
    "finished": "the program has ended. {where}",
    "reason.error": "the program failed",
    "stopped": "stopped: {why}. {where}. Run the same again to go on.",
    "where": "Newest version: {step}",
    "where.none": "There is no version",
}

_FOLDER_ZH: Words = {
    "language": "zh",
    "chip.fresh": "备份中",
    "chip.resumed": "文件已恢复",
    "chip.saving": "备份中 · 正在生成版本",
    "chip.uploading": "备份中 · 正在上传",
    "chip.saved": "备份中 · 版本已保存",
    "chip.durable": "备份中 · 版本已安全",
    "chip.degraded": "备份中 · 仅在本机",
    "chip.unsaved": "备份中 · 未能生成新版本",
    "says.starting": "正在查找此文件夹的旧版本。",
    "says.fresh": "本次会话还没有生成版本。文件有变化并且写完之后，就会生成第一个版本。",
    "says.resumed": "已逐字节恢复版本 {step}，它是 {age} 前生成的。",
    "says.saving": "正在生成版本 {step}，程序继续运行。{back}",
    "says.uploading": "版本 {step} 已在本机磁盘上，正在上传到 {place}{waiting}。{back}",
    "says.saved": "版本 {step} 已保存：{proof}。",
    "says.durable": "版本 {step} 已安全保存：{proof}。",
    "back": "如果这台机器现在断开，版本 {step} 可以恢复。",
    "back.if": "如果这台机器现在断开，只要 {place} 还在，版本 {step} 就可以恢复。",
    "back.none": "如果这台机器现在断开，没有任何内容可以恢复。",
    "says.temporary": "版本保存在 {place}，它会随这台机器一起消失，届时此文件夹的内容将全部丢失。",
    "then.ends": "程序会在此之前被中断，以便最后一个版本完整。再次运行即可继续。",
    "then.goes-on": "如果文件已写完，现在会生成一个版本；只要机器还在，程序就会继续。",
    "says.interrupted": "已停止（{reason}）。{kept}再次运行即可继续。",
    "says.finished": "程序已结束。{kept}",
    "says.failed": "程序出错：{error}。{kept}再次运行即可从那里继续。",
    "kept": "最新的版本：{step}（{level}）。",
    "kept.none": "没有版本。",
    "folder.at": "{folder} · 版本 {step}{changed}{waits}",
    "folder.none": "{folder} · 还没有版本{changed}{waits}",
    "folder.changed": " · 此后有 {count} 个文件发生变化",
    "folder.waits": "，正在等待：{waits}",
    "folder.same": " · 此后没有变化",
    "safe": "已安全保存：版本 {step}{lost}",
    "saved": "已保存：版本 {step}{lost}",
    "safe.none": "还没有安全保存的内容",
    "safe.asked": "正在向存储查询有哪些版本",
    "lost": " · 若此刻断开将丢失：{lost}",
    "lost.none": " · 若此刻断开不会丢失任何内容",
    "checkpoints": "版本，最新的在前",
    "column.step": "版本",
    "exactness.": "哪些内容会恢复",
    "started": "文件夹 {keeps} 的版本以 {run!r} 为名保存在 {storage}",
    "restored": "{at}已恢复，它是 {age} 前生成的",
    "restored.step": "版本 {step} ",
    "made": "已生成版本 {step}：{size}，其中新写入 {written}",
    "waiting-for": "本次会话还没能生成版本：{waits}",
    "postponed": "版本 {step} 被推迟：上一个版本仍在写入",
    "failing": "未能生成版本：{error}\n程序继续运行，{seconds} 后重试。",
    "deadline.ends": "程序现在被中断，以便最后一个版本完整。再次运行即可继续。",
    "deadline.saves": "如果文件已写完，现在生成一个版本{takes}；只要机器还在，程序就会继续",
    "space": "{url} 剩余 {free}，一个版本最多需要 {size}：{then}",
    "space.keeps": "从现在起只保留 {keeps} 个版本。腾出空间即可保留更多",
    "finished": "程序已结束。{where}",
    "reason.error": "程序出错",
    "stopped": "停止：{why}。{where}。再次运行即可继续。",
    "where": "最新的版本：{step}",
    "where.none": "没有版本",
}

LANGUAGES: Mapping[str, Words] = {"en": EN, "zh": ZH}
FOLDER_LANGUAGES: Mapping[str, Words] = {"en": {**EN, **_FOLDER_EN}, "zh": {**ZH, **_FOLDER_ZH}}

# What events, and the journal's lines, have as English text.
_TEXTS = (
    *("copy", "detail", "ends_source", "error", "lines", "precision", "promise", "reason", "reasons", "text"),
    *("unseen", "waits"),
)


def words_of(language: str, *, folder: bool = False) -> Words:
    """The words of a language, English for one that is not known. `folder`: those for the folder of another program."""
    known = FOLDER_LANGUAGES if folder else LANGUAGES
    return known.get(language, known["en"])


def in_words(event: Event, words: Words) -> Event:
    """The event with its texts in the language of `words`."""
    if words["language"] == "en" or isinstance(event, StepDone):
        return event
    texts = {name: _said(getattr(event, name), words) for name in _TEXTS if hasattr(event, name)}
    return replace(event, **texts) if texts else event


def _said(value: Any, words: Words) -> Any:
    if isinstance(value, str):
        return said(value, words["language"]) if " " in value else value  # a word alone is a name
    return type(value)(_said(each, words) for each in value) if isinstance(value, (list, tuple)) else value


def sentence(event: Event, words: Words = EN) -> str | None:
    """What an event says to people, on one line or more; None for one that says nothing by itself."""
    if isinstance(event, DurabilityTold):
        return said(event.durability.sentence, words["language"])
    record = journal_line(event, 0.0) if type(event).__name__ in _SENTENCES else None
    text = None if record is None else message_of(Line(record), words)
    if isinstance(event, StoreDegraded) and event.durability is not None:
        return f"{text}\n{said(event.durability.sentence, words['language'])}"
    return text


def message_of(line: Line, words: Words = EN) -> str | None:
    """What a line of the journal says to people, as the event did; a question mark is what it does not have."""
    tell = _SENTENCES.get(line.event)
    if tell is not None and words["language"] != "en":
        texts = {name: _said(line.record[name], words) for name in _TEXTS if name in line.record}
        line = Line({**line.record, **texts})
    return None if tell is None else tell(line, words)


def _started(line: Line, words: Words) -> str:
    where = words["started"].format(run=line.text("run"), storage=line.text("storage"), keeps=line.text("keeps"))
    reasons = (f"- {reason}" for reason in line.names("reasons"))
    return "\n".join(filter(None, (where, line.text("promise"), *reasons, line.text("unseen"), line.text("precision"))))


def _not_finite(line: Line, words: Words) -> str:
    word = "NaN" if line.text("value") == "nan" else words["loss.infinite"]
    checkpoint = line.text("checkpoint")
    back = words["loss.back" if checkpoint else "back.no-good"].format(checkpoint=checkpoint)
    return words["loss.broke"].format(word=word, step=line.count("step"), back=back)


def _restored(line: Line, words: Words) -> str:
    at = Line(_mapping(line, "progress"))
    epoch = at.count("epoch") or 0
    # A loop over steps counts no epochs.
    form = words["restored.epoch" if epoch or at.count("batches") else "restored.step"]
    place = form.format(epoch=epoch + 1, step=at.count("step"))
    return words["restored"].format(at=place, age=_duration(line, "age"))


def _complete(line: Line, words: Words) -> str:
    since = local_time(line.number("since"), "%Y-%m-%d %H:%M")
    return words["complete"].format(since=since, step=line.count("step"), length=line.text("length"))


def _epoch_done(line: Line, words: Words) -> str:
    metrics = _mapping(line, "metrics")
    shown = "".join(f", {name} {v if isinstance(v, str) else f'{as_number(v):.4g}'}" for name, v in metrics.items())
    return words["epoch"].format(epoch=(line.count("epoch") or 0) + 1, step=_step(line), metrics=shown)


def _failing(line: Line, words: Words) -> str:
    seconds = _duration(line, "retry_in")
    return words["failing"].format(step=_step(line), error=line.text("error") or "?", seconds=seconds)


def _deadline(line: Line, words: Words) -> str:
    long = (line.number("takes") or 0.0) >= 1.0
    takes = words["deadline.takes"].format(seconds=_duration(line, "takes")) if long else ""
    then = words["deadline.ends"] if line.record.get("ends") is True else words["deadline.saves"].format(takes=takes)
    return words["deadline"].format(seconds=_duration(line, "seconds"), then=then)


def _catching_up(line: Line, words: Words) -> str:
    waiting, speed = line.count("waiting_bytes"), line.number("bytes_per_second")
    left = "" if waiting is None else words["catching-up.left"].format(size=size_text(waiting))
    if waiting and speed:
        left += words["catching-up.speed"].format(speed=size_text(round(speed)))
    return words["catching-up"].format(url=line.text("url"), left=left, seconds=_duration(line, "left"))


def _space(line: Line, words: Words) -> str:
    keeps, full = line.count("keeps"), line.number("full_at")
    if keeps is not None:
        then = words["space.keeps"].format(keeps=keeps)
    elif full is None:
        then = words["space.next"]
    else:
        hour, after, day = local_time(full, "%H:00"), local_time(full + 3600, "%H:00"), local_time(full, "%Y-%m-%d")
        then = words["space.full"].format(hour=hour, next=after, day=day)
    free, size = size_text(line.count("free_bytes")), size_text(line.count("save_bytes"))
    return words["space"].format(free=free, url=line.text("url") or "?", size=size, then=then)


def _stopped(line: Line, words: Words) -> str:
    reason, since = line.text("reason"), line.count("not_finite_since")
    where = words["where"].format(step=_step(line), checkpoint=line.text("checkpoint") or words["none"])
    if line.text("checkpoint") is None:
        where = words.get("where.none", where)
    if reason not in ("finished", "max_steps"):
        why, error = words.get(f"reason.{reason}", reason), line.text("error")
        return words["stopped"].format(reason=reason, where=where, why=f"{why} ({error})" if error else why)
    return words["finished" if since is None else "ended"].format(where=where, since=since)


def _step(line: Line) -> str:
    return "?" if line.place is None else str(line.place[0])


def _mapping(line: Line, name: str) -> Mapping[str, Any]:
    value = line.record.get(name)
    return value if isinstance(value, dict) else {}


def _duration(line: Line, name: str) -> str:
    return duration_text(line.number(name) or 0.0)


_SENTENCES: Mapping[str, Callable[[Line, Words], str]] = {
    "AlreadyComplete": _complete,
    "CadenceChosen": lambda line, _: line.text("text") or "?",
    "CatchingUp": _catching_up,
    "CheckpointSetAside": lambda line, words: words["skipped"].format(
        checkpoint=line.text("checkpoint") or "?", reason=line.text("reason") or "?"
    ),
    "DeadlineNear": _deadline,
    "EpochDone": _epoch_done,
    "LossNotFinite": _not_finite,
    "LossRecovered": lambda line, words: words["loss.recovered"].format(step=line.count("step")),
    "MachineChecked": lambda line, _: "\n".join(line.names("lines")),
    "Noted": lambda line, _: line.text("text") or "?",
    "Restored": _restored,
    "RestoredInexactly": lambda line, words: words["inexact"].format(reason=line.text("reason") or "?"),
    "RunStarted": _started,
    "RunStopped": _stopped,
    "SaveFailing": _failing,
    "SaveSkipped": lambda line, words: words["postponed"].format(step=_step(line)),
    "SpaceShort": _space,
    "StoreDegraded": lambda line, _: f"{line.text('url') or '?'}: {line.text('detail') or '?'}",
}
"""By the name of the event in the journal."""
