"""What a refresh on Apache Spark is made of, by its event log, and how much memory the processes around it took."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

MB = 1e6


def event_log_conf(directory: Path) -> dict[str, str]:
    """Spark's properties for an event log in one plain file, with the driver's memory in it."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.logStageExecutorMetrics": "true",
        "spark.executor.heartbeatInterval": "1s",  # so often the driver looks at its own memory
    }


@dataclass(frozen=True, slots=True)
class Task:
    """An attempt that succeeded. Times are milliseconds since the epoch, `cpu` milliseconds, sizes bytes.

    `rows` are those read from files. (What Spark says of the bytes does not have those that Parquet reads at once.)
    """

    stage: int
    began: int
    ended: int
    cpu: float
    rows: int
    input: int
    read: int
    written: int


@dataclass(slots=True)
class EventLog:
    """The jobs (began, ended) and tasks of an application, and the most heap that its driver had used in each stage."""

    jobs: list[tuple[int, int]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    driver_heap: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(directory: Path) -> EventLog:
        """Of all applications that have written to a directory and have ended."""
        log = EventLog()
        for file in sorted(directory.iterdir()):
            log._read(json.loads(line) for line in file.read_text().splitlines())
        return log

    def _read(self, events: Iterable[dict[str, Any]]) -> None:
        started: dict[int, int] = {}
        for event in events:
            match event["Event"]:
                case "SparkListenerJobStart":
                    started[event["Job ID"]] = event["Submission Time"]
                case "SparkListenerJobEnd":
                    self.jobs.append((started[event["Job ID"]], event["Completion Time"]))
                case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                    self.tasks.append(_task(event))
                case "SparkListenerStageExecutorMetrics" if event["Executor ID"] == "driver":
                    heap = event["Executor Metrics"]["JVMHeapMemory"]
                    self.driver_heap[event["Stage ID"]] = max(heap, self.driver_heap.get(event["Stage ID"], 0))

    def work(self, began: float, ended: float) -> Work:
        """What was done between two moments, in milliseconds since the epoch."""
        tasks = [task for task in self.tasks if began <= task.began and task.ended <= ended]
        stages: dict[int, list[Task]] = {}
        for task in tasks:
            stages.setdefault(task.stage, []).append(task)
        single = [of[0] for of in stages.values() if len(of) == 1]
        return Work(
            jobs=sum(began <= start and end <= ended for start, end in self.jobs),
            stages=len(stages),
            tasks=len(tasks),
            single_stages=len(single),
            rows=sum(task.rows for task in tasks),
            input_mb=sum(task.input for task in tasks) / MB,
            read_mb=sum(task.read for task in tasks) / MB,
            written_mb=sum(task.written for task in tasks) / MB,
            skew=max((_skew(of) for of in stages.values() if len(of) > 1), default=1.0),
            tasks_ms=sum(task.ended - task.began for task in tasks),
            cpu_ms=sum(task.cpu for task in tasks),
            busy_ms=_covered(tasks),
            single_ms=_covered(single),
            driver_heap_mb=max((self.driver_heap.get(stage, 0) for stage in stages), default=0) / MB,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a refresh. `busy_ms` is the time during which a task ran, `single_ms` that of stages of one task;
    `skew` the longest task's time by the median one's, in the stage where that is most."""

    jobs: int
    stages: int
    tasks: int
    single_stages: int
    rows: int
    input_mb: float
    read_mb: float
    written_mb: float
    skew: float
    tasks_ms: float
    cpu_ms: float
    busy_ms: float
    single_ms: float
    driver_heap_mb: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def _task(event: dict[str, Any]) -> Task:
    info, metrics = event["Task Info"], event["Task Metrics"]
    read = metrics["Shuffle Read Metrics"]
    return Task(
        stage=event["Stage ID"],
        began=info["Launch Time"],
        ended=info["Finish Time"],
        cpu=metrics["Executor CPU Time"] / 1e6,
        rows=metrics["Input Metrics"]["Records Read"],
        input=metrics["Input Metrics"]["Bytes Read"],
        read=read["Remote Bytes Read"] + read["Local Bytes Read"],
        written=metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"],
    )


def _skew(tasks: list[Task]) -> float:
    times = [task.ended - task.began for task in tasks]
    return max(times) / max(statistics.median(times), 1)


def _covered(tasks: Iterable[Task]) -> float:
    """The length of the union of the tasks' times."""
    covered, until = 0, 0
    for began, ended in sorted((task.began, task.ended) for task in tasks):
        covered += max(0, ended - max(began, until))
        until = max(until, ended)
    return covered


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most memory of their own that the server, and the JVM of Spark's driver, have had resident, in MB."""

    server_mb: float
    driver_mb: float


class Memory:
    """Watches the server that this process has started, and its JVM."""

    def reset(self) -> None:
        """Peaks are counted from now on."""
        for process in _processes().values():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def peaks(self) -> Peaks:
        found = {name: _status(process.pid, "VmHWM") for name, process in _processes().items()}
        return Peaks(found["server"], found.get("driver", 0.0))


def _processes() -> dict[str, psutil.Process]:
    return dict(_named(psutil.Process(os.getpid()).children(recursive=True)))


def _named(processes: Iterable[psutil.Process]) -> Iterator[tuple[str, psutil.Process]]:
    for process in processes:
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue  # one that ended while it was looked for
        if words[1:4] == ["-m", "server", "serve"]:
            yield "server", process
        elif any("deploy.SparkSubmit" in word for word in words):
            yield "driver", process


def _status(pid: int, name: str) -> float:
    """A line of a process's status, of kilobytes, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / MB
    raise KeyError(name)


__all__ = ["EventLog", "Memory", "Peaks", "Work", "event_log_conf"]
