"""What a panel says, in English and Chinese. Numbers, times and the text of events are the same in both."""

# ruff: noqa: RUF001  # Chinese has a comma and a colon of its own
from __future__ import annotations

from collections.abc import Mapping

from colabkeep.vocabulary.environment import Environment

__all__ = ["EN", "LANGUAGES", "SYMBOLS", "ZH", "language", "words_of"]

SYMBOLS: Mapping[str, str] = {  # of the kind that basic fonts have
    "starting": "○",
    "fresh": "○",
    "resumed": "↻",
    "saving": "✎",
    "uploading": "↑",
    "durable": "✔",
    "degraded": "▲",
    "unsaved": "▲",
    "ending": "!",
    "interrupted": "■",
    "finished": "✔",
    "failed": "✖",
}

EN: Mapping[str, str] = {
    "chip.starting": "STARTING",
    "chip.fresh": "FRESH RUN",
    "chip.resumed": "RESUMED",
    "chip.saving": "SAVING",
    "chip.uploading": "UPLOADING",
    "chip.durable": "DURABLE",
    "chip.degraded": "DEGRADED: LOCAL ONLY",
    "chip.unsaved": "DEGRADED: NOT SAVED",
    "chip.ending": "SESSION ENDING SOON",
    "chip.interrupted": "INTERRUPTED",
    "chip.finished": "FINISHED",
    "chip.failed": "FAILED",
    "says.starting": "Looking for an earlier checkpoint of this run.",
    "says.fresh": "No earlier checkpoint of this run was found in {storage}: training starts from zero. Nothing is "
    "safe before the first save.",
    "says.resumed": "Training went on from step {step}, saved {age} before: no more than that is trained again. {how}",
    "how.exact": "Model, optimizer, random streams and position in the data are as they were.",
    "how.inexact": "Not bit for bit: {reason}.",
    "says.saving": "The state at step {step} is being saved; training goes on. {back}",
    "says.uploading": "The checkpoint of step {step} is on this machine's disk and on its way to {place}"
    "{waiting}. {back}",
    "waiting": ", {size} at {speed}/s",
    "says.durable": "The checkpoint of step {step} is safe: {proof}.",
    "proof.confirmed": "{place} itself stated the right checksum",
    "proof.sent": "{place} was given all of it",
    "proof.unknown": "{place} was given all of it, and cannot say what it has",
    "proof.local": "it lies in {place}, as far as that outlives this machine",
    "back": "If this machine vanished now, training would go on from step {step}.",
    "back.none": "If this machine vanished now, training would start again.",
    "says.degraded": "Since {since} UTC: {detail}",
    "says.temporary": "Checkpoints go to {place}, which goes with this machine: nothing of this training would "
    "be left.",
    "says.ending": "This session is over in {left} at most. {then}",
    "then.ends": "Training ends here by itself, so that what it made is kept; run the notebook again to go on.",
    "then.goes-on": "It is saved now, and training goes on while the machine lives.",
    "says.interrupted": "Stopped at step {step} ({reason}). {kept} Run the same cell again to go on.",
    "says.finished": "Finished at step {step} after {seconds} of training in {sessions} session(s). {kept}",
    "says.failed": "{error}, at step {step}. {kept} Mend the cause and run the same cell again to go on.",
    "kept": "The newest checkpoint holds step {step}: {rung}.",
    "kept.none": "There is no checkpoint.",
    "reason.interrupt": "you interrupted it",
    "reason.sigterm": "the service ended the process",
    "reason.max_time": "its time was used up",
    "reason.session_end": "before the session's end",
    "reason.left": "the loop was left",
    "error.unknown": "An error ended the training",
    "progress": "{share} · {at}{speed}{left}",
    "at.step": "step {step}",
    "at.steps": "step {step} of {total}",
    "at.epoch": "epoch {epoch} of {epochs} · ",
    "speed": " · {speed} steps/s",
    "left": " · about {left} to go",
    "safe": "Safe up to step {step} · would lose now: {steps} steps ({seconds})",
    "safe.asked": "Safe: being asked, the storage has not said yet which checkpoint it has",
    "safe.none": "Nothing is safe yet · would lose now: {steps} steps ({seconds})",
    "session": "Session left: {left} at most (an estimate). {source}",
    "session.unknown": "Session left: unknown.",
    "checkpoints": "Checkpoints, newest first",
    "column.step": "step",
    "column.size": "size",
    "column.rung": "state",
    "column.where": "where",
    "rung.captured": "in memory",
    "rung.local": "on this machine's disk",
    "rung.unknown": "given, not confirmed",
    "rung.sent": "sent",
    "rung.confirmed": "confirmed",
    "where.here": "this machine",
    "events": "Last events",
    "as-of": "As of {time} UTC. If that is long ago, this is not live: colabkeep.report({run}) tells the whole story.",
    "curve.title": "loss",
    "curve.empty": "{title}: no value yet",
    "curve.told": "{title}, {count} points from step {begin} to {end}: first {first}, last {last}, "
    "lowest {lowest} at {at}",
    "curve.gaps": "not a number at step {steps}",
    "curve.more": "and {count} more",
    "curve.stale": "No update for {seconds} s: not live",
    "mark.resumed": "resumed at {step}",
    "mark.durable": "{step} durable",
    "mark.local": "{step} not yet durable",
    "record": "The same as a record that stays when this notebook is opened again",
}

ZH: Mapping[str, str] = {
    "chip.starting": "正在开始",
    "chip.fresh": "新的训练",
    "chip.resumed": "已恢复",
    "chip.saving": "正在保存",
    "chip.uploading": "正在上传",
    "chip.durable": "已持久保存",
    "chip.degraded": "降级：仅在本机",
    "chip.unsaved": "降级：未能保存",
    "chip.ending": "会话即将结束",
    "chip.interrupted": "已中断",
    "chip.finished": "已完成",
    "chip.failed": "失败",
    "says.starting": "正在查找此训练的检查点。",
    "says.fresh": "在 {storage} 中没有找到此训练的检查点，从零开始。第一次保存之前没有任何内容是安全的。",
    "says.resumed": "训练从第 {step} 步继续，该检查点保存于 {age} 之前：最多重新训练这么多。{how}",
    "how.exact": "模型、优化器、随机数和数据位置都与当时相同。",
    "how.inexact": "并非逐位一致：{reason}。",
    "says.saving": "正在保存第 {step} 步的状态，训练继续进行。{back}",
    "says.uploading": "第 {step} 步的检查点在本机磁盘上，正在传往 {place}{waiting}。{back}",
    "waiting": "，还有 {size}，速度 {speed}/s",
    "says.durable": "第 {step} 步的检查点是安全的：{proof}。",
    "proof.confirmed": "{place} 自己报告了正确的校验和",
    "proof.sent": "已全部交给 {place}",
    "proof.unknown": "已全部交给 {place}，但它无法说明自己有什么",
    "proof.local": "它在 {place} 中，只要该处比这台机器更长久",
    "back": "如果这台机器现在消失，训练将从第 {step} 步继续。",
    "back.none": "如果这台机器现在消失，训练将从头开始。",
    "says.degraded": "自 {since} UTC 起：{detail}",
    "says.temporary": "检查点保存在 {place}，它会随这台机器一起消失：此次训练什么也不会留下。",
    "says.ending": "此会话最多还有 {left}。{then}",
    "then.ends": "训练会自行结束，以便保留结果；再次运行笔记本即可继续。",
    "then.goes-on": "现在保存一次；只要机器还在，训练就继续。",
    "says.interrupted": "在第 {step} 步停止（{reason}）。{kept}再次运行同一单元格即可继续。",
    "says.finished": "在第 {step} 步完成，共训练 {seconds}，{sessions} 个会话。{kept}",
    "says.failed": "{error}，在第 {step} 步。{kept}解决原因后再次运行同一单元格即可继续。",
    "kept": "最新的检查点保存了第 {step} 步：{rung}。",
    "kept.none": "没有检查点。",
    "reason.interrupt": "由你中断",
    "reason.sigterm": "服务结束了进程",
    "reason.max_time": "时间已用完",
    "reason.session_end": "在会话结束之前",
    "reason.left": "离开了循环",
    "error.unknown": "训练因错误而结束",
    "progress": "{share} · {at}{speed}{left}",
    "at.step": "第 {step} 步",
    "at.steps": "第 {step} / {total} 步",
    "at.epoch": "第 {epoch} / {epochs} 轮 · ",
    "speed": " · {speed} 步/秒",
    "left": " · 大约还需 {left}",
    "safe": "第 {step} 步之前是安全的 · 现在会失去：{steps} 步（{seconds}）",
    "safe.asked": "安全与否：正在询问，存储尚未说明它有哪个检查点",
    "safe.none": "还没有任何内容是安全的 · 现在会失去：{steps} 步（{seconds}）",
    "session": "会话剩余时间：最多 {left}（估计）。{source}",
    "session.unknown": "会话剩余时间：未知。",
    "checkpoints": "检查点，最新的在前",
    "column.step": "步",
    "column.size": "大小",
    "column.rung": "状态",
    "column.where": "位置",
    "rung.captured": "在内存中",
    "rung.local": "在本机磁盘上",
    "rung.unknown": "已交付，未确认",
    "rung.sent": "已发送",
    "rung.confirmed": "已确认",
    "where.here": "本机",
    "events": "最近的事件",
    "as-of": "截至 {time} UTC。如果这是很久以前，则不是实时的：colabkeep.report({run}) 会讲述全部经过。",
    "curve.title": "损失",
    "curve.empty": "{title}：还没有数值",
    "curve.told": "{title}，从第 {begin} 步到第 {end} 步共 {count} 个点：最初 {first}，最后 {last}，"
    "最低 {lowest}（第 {at} 步）",
    "curve.gaps": "在第 {steps} 步不是数",
    "curve.more": "以及另外 {count} 个",
    "curve.stale": "{seconds} 秒没有更新：不是实时的",
    "mark.resumed": "从 {step} 继续",
    "mark.durable": "{step} 已持久",
    "mark.local": "{step} 尚未持久",
    "record": "同样内容的记录，再次打开笔记本时仍在",
}

LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": EN, "zh": ZH}

_VARIABLE = "COLABKEEP_LANGUAGE"
_OF_THE_SYSTEM = ("LC_ALL", "LC_MESSAGES", "LANG")  # in the order in which POSIX asks them


def words_of(language: str) -> Mapping[str, str]:
    """The words of a language, English for one that is not known."""
    return LANGUAGES.get(language, EN)


def language(environment: Environment) -> str:
    """ "zh" or "en": what COLABKEEP_LANGUAGE says, else what the system's variables say."""
    variables = environment.environ
    told = variables.get(_VARIABLE) or next((variables[name] for name in _OF_THE_SYSTEM if variables.get(name)), "")
    return "zh" if told.lower().startswith("zh") else "en"
