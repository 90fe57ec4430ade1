"""What a panel says, in English and Chinese, and events as sentences. Numbers, times and the text of events are the
same in both.
"""
# ruff: noqa: RUF001  # Chinese has a comma and a colon of its own

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from colabkeep.core.arguments import duration_text
from colabkeep.core.events import (
    AlreadyComplete,
    CadenceChosen,
    CatchingUp,
    CheckpointSetAside,
    DeadlineNear,
    DurabilityTold,
    EpochDone,
    Event,
    LossNotFinite,
    LossRecovered,
    MachineChecked,
    Noted,
    Restored,
    RestoredInexactly,
    RunStarted,
    RunStopped,
    SaveFailing,
    SaveSkipped,
    SpaceShort,
    StoreDegraded,
)
from colabkeep.core.policies import SAYINGS
from colabkeep.core.system import Environment
from colabkeep.session.metrics import as_number
from colabkeep.ui.text import size_text

__all__ = [
    "EN",
    "LANGUAGES",
    "SYMBOLS",
    "ZH",
    "language",
    "sentence",
    "words_of",
]

SYMBOLS: Mapping[str, str] = {  # of the kind that basic fonts have
    "starting": "○",
    "fresh": "○",
    "resumed": "↻",
    "saving": "✎",
    "uploading": "↑",
    "saved": "✔",
    "durable": "✔",
    "degraded": "▲",
    "unsaved": "▲",
    "ending": "!",
    "nan": "✖",
    "interrupted": "■",
    "finished": "✔",
    "diverged": "✖",
    "failed": "✖",
}

EN: Mapping[str, str] = {
    "chip.starting": "STARTING",
    "chip.fresh": "FRESH RUN",
    "chip.resumed": "RESUMED",
    "chip.saving": "SAVING",
    "chip.uploading": "UPLOADING",
    "chip.saved": "SAVED",
    "chip.durable": "DURABLE",
    "chip.degraded": "DEGRADED: LOCAL ONLY",
    "chip.unsaved": "DEGRADED: NOT SAVED",
    "chip.ending": "SESSION ENDING SOON",
    "chip.nan": "LOSS IS {word}",
    "chip.interrupted": "INTERRUPTED",
    "chip.finished": "FINISHED",
    "chip.diverged": "ENDED WITH {word}",
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
    "says.saved": "The checkpoint of step {step} is saved: {proof}.",
    "says.durable": "The checkpoint of step {step} is safe: {proof}.",
    "proof.confirmed": "{place} itself stated the right checksum",
    "proof.sent": "{place} was given all of it",
    "proof.unknown": "{place} was given all of it, and cannot say what it has",
    "proof.local": "it is kept only if {place} survives this machine, which cannot be told from here",
    "back": "If this machine vanished now, training would go on from step {step}.",
    "back.if": "If this machine vanished now, training would go on from step {step}, if {place} survives it.",
    "back.none": "If this machine vanished now, training would start again.",
    "says.degraded": "Since {since} UTC: {detail}",
    "says.temporary": "Checkpoints go to {place}, which goes with this machine: nothing of this training would "
    "be left.",
    "says.ending": "This session is over in {left} at most. {then}",
    "then.ends": "Training ends here by itself, so that what it made is kept; run the notebook again to go on.",
    "then.goes-on": "It is saved now, and training goes on while the machine lives.",
    "loss.nan": "NaN",
    "loss.inf": "INFINITE",
    "says.nan": "The loss is not a finite number since step {since} ({word}): unless it recovers, what is trained from "
    "here on is worth nothing. {back}",
    "says.diverged": "Ended at step {step}, and the loss is not a finite number since step {since} ({word}): these "
    "weights are worth nothing. {back}",
    "back.good": 'To go back, run the cell with resume="{checkpoint}": the newest checkpoint from before. It is kept.',
    "back.no-good": "There is no checkpoint from before.",
    "says.interrupted": "Stopped at step {step} ({reason}). {kept} Run the same cell again to go on.",
    "says.finished": "Finished at step {step} after {seconds} of training in {sessions} session(s). {kept}",
    "says.complete": "Complete since {since} UTC, at step {step}: nothing was trained. {kept}",
    "says.failed": "{error}, at step {step}. {kept} Mend the cause and run the same cell again to go on.",
    "kept": "The newest checkpoint holds step {step}: {rung}.",
    "kept.none": "There is no checkpoint.",
    "reason.interrupt": "you interrupted it",
    "reason.sigterm": "the service ended the process",
    "reason.sighup": "the terminal was closed",
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
    "saved": "Saved up to step {step} · would lose now: {steps} steps ({seconds})",
    "safe": "Safe up to step {step} · would lose now: {steps} steps ({seconds})",
    "safe.asked": "Safe: being asked, the storage has not said yet which checkpoint it has",
    "safe.none": "Nothing is safe yet · would lose now: {steps} steps ({seconds})",
    "session": "Session left: {left} at most (an estimate). {source}",
    "session.unknown": "Session left: unknown.",
    **SAYINGS,
    "saves": "{chosen}. {last}",
    "saves.last": "The last save stopped training for {stall}{why}.",
    "saves.why": " ({copy})",
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
    "exactness.": "What a resume restores: not told yet",
    "exactness.exact": "Exact: the same bits after a resume",
    "exactness.mostly": "Exact after a resume, but for what is named here",
    "exactness.course": "After a resume the same course, not the same bits: why",
    "events": "Last events",
    "as-of": "As of {time} UTC. If that is long ago, this is not live: colabkeep.report({run}) tells the whole story.",
    "curve.title": "loss",
    "curve.empty": "{title}: no value yet",
    "curve.legend": "{title} by step",
    "curve.legend_saves": "▲ durable, △ not yet",
    "curve.told": "{title}, {count} points from step {begin} to {end}: first {first}, last {last}, "
    "lowest {lowest} at {at}",
    "curve.gaps": "not a number at step {steps}",
    "curve.more": "and {count} more",
    "curve.stale": "No update for {seconds} s: not live",
    "mark.resumed": "resumed at {step}",
    "mark.broken": "NaN at {step}",
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
    "chip.saved": "已保存",
    "chip.durable": "已持久保存",
    "chip.degraded": "降级：仅在本机",
    "chip.unsaved": "降级：未能保存",
    "chip.ending": "会话即将结束",
    "chip.nan": "损失为 {word}",
    "chip.interrupted": "已中断",
    "chip.finished": "已完成",
    "chip.diverged": "已结束，损失为 {word}",
    "chip.failed": "失败",
    "says.starting": "正在查找此训练的检查点。",
    "says.fresh": "在 {storage} 中没有找到此训练的检查点，从零开始。第一次保存之前没有任何内容是安全的。",
    "says.resumed": "训练从第 {step} 步继续，该检查点保存于 {age} 之前：最多重新训练这么多。{how}",
    "how.exact": "模型、优化器、随机数和数据位置都与当时相同。",
    "how.inexact": "并非逐位一致：{reason}。",
    "says.saving": "正在保存第 {step} 步的状态，训练继续进行。{back}",
    "says.uploading": "第 {step} 步的检查点在本机磁盘上，正在传往 {place}{waiting}。{back}",
    "waiting": "，还有 {size}，速度 {speed}/s",
    "says.saved": "第 {step} 步的检查点已保存：{proof}。",
    "says.durable": "第 {step} 步的检查点是安全的：{proof}。",
    "proof.confirmed": "{place} 自己报告了正确的校验和",
    "proof.sent": "已全部交给 {place}",
    "proof.unknown": "已全部交给 {place}，但它无法说明自己有什么",
    "proof.local": "只有 {place} 比这台机器更长久时才会保留，此处无法判断",
    "back": "如果这台机器现在消失，训练将从第 {step} 步继续。",
    "back.if": "如果这台机器现在消失，只要{place}还在，训练将从第 {step} 步继续。",
    "back.none": "如果这台机器现在消失，训练将从头开始。",
    "says.degraded": "自 {since} UTC 起：{detail}",
    "says.temporary": "检查点保存在 {place}，它会随这台机器一起消失：此次训练什么也不会留下。",
    "says.ending": "此会话最多还有 {left}。{then}",
    "then.ends": "训练会自行结束，以便保留结果；再次运行笔记本即可继续。",
    "then.goes-on": "现在保存一次；只要机器还在，训练就继续。",
    "loss.nan": "NaN",
    "loss.inf": "无穷大",
    "says.nan": "自第 {since} 步起损失不是有限数（{word}）：除非恢复，此后的训练毫无价值。{back}",
    "says.diverged": "在第 {step} 步结束，自第 {since} 步起损失不是有限数（{word}）：这些权重毫无价值。{back}",
    "back.good": '要返回，请以 resume="{checkpoint}" 再次运行该单元格：这是此前最新的检查点，会保留。',
    "back.no-good": "此前没有检查点。",
    "says.interrupted": "在第 {step} 步停止（{reason}）。{kept}再次运行同一单元格即可继续。",
    "says.finished": "在第 {step} 步完成，共训练 {seconds}，{sessions} 个会话。{kept}",
    "says.complete": "已于 {since} UTC 完成，共 {step} 步：此次没有训练。{kept}",
    "says.failed": "{error}，在第 {step} 步。{kept}解决原因后再次运行同一单元格即可继续。",
    "kept": "最新的检查点保存了第 {step} 步：{rung}。",
    "kept.none": "没有检查点。",
    "reason.interrupt": "由你中断",
    "reason.sigterm": "服务结束了进程",
    "reason.sighup": "终端已关闭",
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
    "saved": "已保存到第 {step} 步 · 现在会失去：{steps} 步（{seconds}）",
    "safe": "第 {step} 步之前是安全的 · 现在会失去：{steps} 步（{seconds}）",
    "safe.asked": "安全与否：正在询问，存储尚未说明它有哪个检查点",
    "safe.none": "还没有任何内容是安全的 · 现在会失去：{steps} 步（{seconds}）",
    "session": "会话剩余时间：最多 {left}（估计）。{source}",
    "session.unknown": "会话剩余时间：未知。",
    "cadence": "每 {interval} 保存一次：在此每次保存耗时 {cost}，会话平均约持续 {session}{carried}{then}",
    "cadence.little": "不到 1 ms",
    "cadence.carried": "，存储每 {carried} 才能接收一次",
    "cadence.overhead": "；更频繁会占用超过 {overhead} % 的时间（overhead=…）",
    "cadence.storage": "；不会超过存储所能接收的速度",
    "cadence.budget": "；再频繁就会超出该服务的限额（见 colabkeep doctor --storage=…）",
    "cadence.behind": "；这比保存更慢，因此每次完成后接着传最新的",
    "cadence.share": "；这占用 {share} % 的时间",
    "cadence.risked": "，但间隔更长风险太大",
    "cadence.becomes": "，并会逐渐减少",
    "saves": "{chosen}。{last}",
    "saves.last": "上一次保存使训练停顿 {stall}{why}。",
    "saves.why": "（{copy}）",
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
    "exactness.": "恢复后会还原什么：尚未说明",
    "exactness.exact": "精确：恢复后逐位一致",
    "exactness.mostly": "恢复后逐位一致，除非用到这里列出的运算",
    "exactness.course": "恢复后过程相同，但并非逐位一致：原因",
    "events": "最近的事件",
    "as-of": "截至 {time} UTC。如果这是很久以前，则不是实时的：colabkeep.report({run}) 会讲述全部经过。",
    "curve.title": "损失",
    "curve.empty": "{title}：还没有数值",
    "curve.legend": "各步的{title}",
    "curve.legend_saves": "▲ 已持久，△ 尚未",
    "curve.told": "{title}，从第 {begin} 步到第 {end} 步共 {count} 个点：最初 {first}，最后 {last}，"
    "最低 {lowest}（第 {at} 步）",
    "curve.gaps": "在第 {steps} 步不是数",
    "curve.more": "以及另外 {count} 个",
    "curve.stale": "{seconds} 秒没有更新：不是实时的",
    "mark.resumed": "从 {step} 继续",
    "mark.broken": "{step} 出现 NaN",
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


def sentence(event: Event) -> str | None:
    """What an event says to people, on one line or more; None for one that says nothing by itself."""
    tell = _SENTENCES.get(type(event))
    return None if tell is None else tell(event)


def _started(event: RunStarted) -> str:
    where = f"run {event.run!r}, checkpoints in {event.storage}"
    reasons = (f"- {reason}" for reason in event.reasons)
    return "\n".join(filter(None, (where, event.promise, *reasons, event.unseen, event.precision)))


def _not_finite(event: LossNotFinite) -> str:
    back = (
        f'To go back, stop it and run the cell with resume="{event.checkpoint}": the newest checkpoint from before, '
        "which is kept."
        if event.checkpoint
        else "No checkpoint from before has been written yet."
    )
    lost = "unless it recovers, what is trained from here on is worth nothing"
    return f"THE LOSS IS {event.word} since step {event.step}: {lost}.\n{back}"


def _restored(event: Restored) -> str:
    counts_epochs = event.progress.epoch or event.progress.batches  # a loop over steps does not
    at = f"{f'epoch {event.progress.epoch + 1}, ' if counts_epochs else ''}step {event.progress.step}"
    return f"goes on from {at}, saved {duration_text(event.age)} ago: no more than that is trained again"


def _complete(event: AlreadyComplete) -> str:
    since = datetime.fromtimestamp(event.since).astimezone()
    return (
        f"complete since {since:%Y-%m-%d %H:%M}, at step {event.step}: nothing is trained. To train on, raise "
        f"{event.length}; for a new training choose another run_name"
    )


def _epoch_done(event: EpochDone) -> str:
    metrics = "".join(f", {name} {as_number(value):.4g}" for name, value in event.metrics.items())
    return f"epoch {event.epoch + 1} done, step {event.progress.step}{metrics}"


def _skipped(event: SaveSkipped) -> str:
    return (
        f"the save due at step {event.progress.step} waits: the one before is still being written. "
        "Saves come faster than the storage takes them; the newest wins (said once)"
    )


def _failing(event: SaveFailing) -> str:
    retry = f"training goes on; the next attempt is in {duration_text(event.retry_in)}"
    return f"NOT SAVED at step {event.progress.step}: {event.error}\n{retry}"


def _deadline(event: DeadlineNear) -> str:
    takes = f", which takes about {duration_text(event.takes)} until it is safe" if event.takes >= 1.0 else ""
    then = (
        "training ends here, so that what it made is kept. Run the notebook again to go on."
        if event.ends
        else f"it is saved now{takes}, and training goes on while the machine lives"
    )
    return f"this session is over in {duration_text(event.seconds)} at most: {then}"


def _catching_up(event: CatchingUp) -> str:
    left = "" if event.waiting_bytes is None else f", {size_text(event.waiting_bytes)} left"
    if event.waiting_bytes and event.bytes_per_second:
        left += f" at {size_text(round(event.bytes_per_second))} a second"
    return f"waiting for {event.url}{left}; for {duration_text(event.left)} more at most (flush_timeout=…)"


def _space(event: SpaceShort) -> str:
    room = f"{size_text(event.free_bytes)} are free in {event.url}, and a save takes {size_text(event.save_bytes)}"
    if event.keeps is not None:
        return f"{room}: only {event.keeps} checkpoint(s) are kept from now on. Make room there to keep more"
    if event.full_at is None:
        return f"{room}: the next one may not fit. Make room there, or keep fewer (keep_last=…)"
    hour = datetime.fromtimestamp(event.full_at).astimezone()
    when = f"between {hour:%H}:00 and {hour + timedelta(hours=1):%H}:00 on {hour:%Y-%m-%d}"
    return f"{room}: it will be FULL {when} at this run's pace. Make room there, or keep fewer (keep_last=…)"


def _degraded(event: StoreDegraded) -> str:
    lost = "" if event.durability is None else f"\n{event.durability.sentence}"
    return f"{event.url}: {event.detail}{lost}"


def _stopped(event: RunStopped) -> str:
    where = f"step {event.progress.step}; newest checkpoint: {event.checkpoint or 'none'}"
    if event.reason in ("finished", "max_steps") and event.not_finite_since is not None:
        return (
            f"ended at {where}. The loss is not a finite number since step {event.not_finite_since}: these weights "
            "are worth nothing."
        )
    if event.reason in ("finished", "max_steps"):
        return f"finished at {where}"
    return f"stopped ({event.reason}) at {where}. Run the same cell again to go on."


_SENTENCES: Mapping[type, Callable[[Any], str]] = {
    CadenceChosen: lambda event: str(event.text),
    MachineChecked: lambda event: "\n".join(event.lines),
    RunStarted: _started,
    AlreadyComplete: _complete,
    Restored: _restored,
    RestoredInexactly: lambda event: f"not bit for bit: {event.reason}",
    LossNotFinite: _not_finite,
    LossRecovered: lambda event: f"the loss is a finite number again since step {event.step}",
    CatchingUp: _catching_up,
    CheckpointSetAside: lambda event: f"walked past {event.checkpoint}: {event.reason}",
    EpochDone: _epoch_done,
    SaveSkipped: _skipped,
    SaveFailing: _failing,
    DeadlineNear: _deadline,
    DurabilityTold: lambda event: str(event.durability.sentence),
    SpaceShort: _space,
    StoreDegraded: _degraded,
    Noted: lambda event: str(event.text),
    RunStopped: _stopped,
}
