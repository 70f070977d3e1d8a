"""Everything that is said of the projects under some paths: verdicts, findings, what ran and what did not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recipegen.check import file_findings, fixes, ignore, policy, repeats, rules, verification, wording
from recipegen.check.gather import NO_HARDWARE, Gathered, Target, gather
from recipegen.check.known import known_rules
from recipegen.check.policy import Policy
from recipegen.check.probe import Probe
from recipegen.check.registry import finding
from recipegen.check.subject import Subject
from recipegen.check.trainer_process import TrainerProcess
from recipegen.rules import evaluate
from recipegen.source import Collected, Project, Skipped, collect
from recipegen.spec import Finding, RecipegenError, Severity, Verdict

ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_WORST = (Verdict.DOES_NOT_FIT, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.FITS)
# Recipe fields that a rule on a recipe is about, the first that a file states; by rule, else by family.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "RG205": ("attention",),
    "RG403": ("optimizer.beta2", "schedule.learning_rate"),
    "memory": ("micro_batch_size", "sequence_len"),
    "host": ("deepspeed.offload_param", "deepspeed.offload_optimizer", "fsdp.offload_params", "model"),
    "disk": ("saving.save_total_limit", "saving.save_steps", "model"),
    "learning": ("schedule.learning_rate", "optimizer.name"),
    "network": ("parallelism.strategy", "parallelism.nodes"),
}


ROOM = ("memory", "host", "disk")  # families of what must fit
_WAYS_OUT = "see the ways out"  # which a plan lists, and a check does not


@dataclass(frozen=True)
class Options:
    """What the command line asks for. `policy_file` None: the nearest .recipegen.yaml. `fix`: findings get their safe
    fixes; nothing is written here. `trainers`: also the models of Axolotl, where they are installed. `probe`: what
    `recipegen hardware probe` found on the training box. `allow_empty`: no recipe under the paths is an answer."""

    target: Target = field(default_factory=Target)
    policy_file: Path | None = None
    full: bool = False
    strict: bool = False
    accept_tight: bool = False
    fix: bool = False
    trainers: bool = True
    probe: Probe | None = None
    allow_empty: bool = False


@dataclass(frozen=True)
class Checked:
    """One project. `where` of findings and `places` are paths as a person named them; `verified` is what a probe said
    in favour of the recipe."""

    project: Project
    subject: Subject
    verdict: Verdict
    findings: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    ran: tuple[str, ...]
    verified: tuple[str, ...] = ()
    strict: bool = False
    accept_tight: bool = False

    @property
    def failed(self) -> bool:
        """Whether `recipegen check PATH && ./launch.sh` must stop."""
        if any(f.severity is Severity.ERROR for f in self.findings) or self.verdict is Verdict.DOES_NOT_FIT:
            return True
        if self.verdict is Verdict.TIGHT and not self.accept_tight:
            return True
        warned = any(f.severity is Severity.WARNING for f in self.findings)
        return self.strict and (warned or self.verdict is Verdict.UNKNOWN)


@dataclass(frozen=True)
class Outcome:
    """All projects; `findings` are about files that belong to none."""

    checked: tuple[Checked, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst."""
        found = {one.verdict for one in self.checked}
        return next((verdict for verdict in _WORST if verdict in found), Verdict.UNKNOWN)

    @property
    def exit_code(self) -> int:
        errors = any(f.severity is Severity.ERROR for f in self.findings)
        return 1 if errors or any(one.failed for one in self.checked) else 0

    def all_findings(self) -> tuple[Finding, ...]:
        """Those of every project, and those of none."""
        return (*self.findings, *(f for one in self.checked for f in one.findings))


def check(paths: Sequence[str | Path], options: Options | None = None) -> Outcome:
    """Check everything under `paths`. Raises RecipegenError for what the command line itself has wrong, and where
    nothing of a recipe is found."""
    options = options or Options()
    found = collect(paths)
    loose = refused(found)
    if not found.projects and not options.allow_empty and not any(f.severity is Severity.ERROR for f in loose):
        seen = [f"{one.shown}: {one.reason}" for one in found.refused]
        seen += [f"{one.shown}: {one.reason}" for one in found.skipped]
        what = seen[0] if seen else "no file of a recipe"
        raise RecipegenError(f"nothing to check: {what}", fix="Give a folder or files of a recipe.")
    return Outcome(check_projects(found.projects, options, _policies(options)), loose, found.skipped)


def check_projects(
    projects: Iterable[Project], options: Options, policies: Callable[[Path], Policy]
) -> tuple[Checked, ...]:
    """Check projects that are collected already. `policies` gives the policy that holds for a folder."""
    with TrainerProcess() as child:
        return tuple(
            _checked(gather(project, options.target), policies(project.folder), options, child) for project in projects
        )


def _policies(options: Options) -> Callable[[Path], Policy]:
    known = known_rules()
    read: dict[Path, Policy] = {}

    def of(folder: Path) -> Policy:
        path = options.policy_file or policy.find(folder)
        if path is None:
            return Policy()
        if path not in read:
            read[path] = policy.read(_relative(path), known)
        return read[path]

    if options.policy_file is not None:
        of(options.policy_file)  # what is wrong with it is said before anything is checked
    return of


def _relative(path: Path) -> Path:
    here = Path(os.path.realpath(os.curdir))
    return path.relative_to(here) if path.is_relative_to(here) else path


def refused(found: Collected) -> tuple[Finding, ...]:
    """A finding for every file that was not read."""
    return tuple(
        finding("RG706", Severity.ERROR if one.certain else Severity.NOTE, one.reason, where=one.shown)
        for one in found.refused
    )


# --- one project


def _checked(gathered: Gathered, wanted: Policy, options: Options, child: TrainerProcess) -> Checked:
    project, subject = gathered.project, gathered.subject
    said, ran = file_findings.of(gathered, child, full=options.full, trainers=options.trainers)
    said += [*gathered.problems, *_estimated(subject), *rules.findings(subject)]
    said += verification.notes(subject, options.probe)
    if subject.estimate is not None:
        said += wanted.exceeded(subject.estimate, subject.main)
    verdict = _verdict(subject, said)
    ignores = ignore.read(project.files, known_rules())
    said += ignores.problems
    said = wanted.applied(repeats.once(said))
    kept = [f for f in said if not ignores.covers(f)]
    if options.fix:
        kept = list(fixes.with_edits(kept, subject))
    return Checked(
        project,
        subject,
        verdict,
        _sorted(_shown(kept, project)),
        _sorted(_shown([f for f in said if ignores.covers(f)], project)),
        tuple(ran),
        tuple(verification.fulfilled(subject, options.probe)),
        options.strict or wanted.strict,
        options.accept_tight or wanted.accept_tight,
    )


def _verdict(subject: Subject, said: Iterable[Finding]) -> Verdict:
    """The GPU's, unless the host or its disk is too small: as for a plan. No policy or comment changes it."""
    if subject.estimate is None:
        return Verdict.UNKNOWN
    short = any(f.family in ROOM and f.severity is Severity.ERROR and f.required_bytes for f in said)
    return Verdict.DOES_NOT_FIT if short else subject.estimate.verdict


def _estimated(subject: Subject) -> Iterator[Finding]:
    """What the rules on a recipe say, or why there is no estimate."""
    assembled = subject.assembled
    for unknown in assembled.unknown:
        fix = (
            "give --hardware NAME (`recipegen hardware list`), or write it into recipe.yaml"
            if unknown.path == NO_HARDWARE
            else ""
        )
        place = unknown.where or subject.main or next(iter(subject.files), "")
        yield finding("RG709", Severity.NOTE, unknown.reason, fix=fix, where=place, field=unknown.path)
    recipe, model, cluster, cost = assembled.recipe, assembled.model, subject.cluster, subject.estimate
    if recipe is None or model is None or cluster is None or cost is None:
        return
    try:
        found = evaluate(recipe, model, cluster, cost, subject.stack, generated=False)
    except RecipegenError as error:
        yield finding("RG709", Severity.NOTE, str(error), where=subject.main)
        return
    for one in found:
        fix = one.fix if one.fix != _WAYS_OUT else f"`recipegen plan --model {model.id} --hardware {cluster.name}`"
        yield wording.in_file_words(replace(one, where=one.where or _stated(subject, one), fix=fix), subject)


def _stated(subject: Subject, found: Finding) -> str:
    """Where the files state what a rule on the recipe is about."""
    fields = (found.field,) if found.field else _ABOUT.get(found.rule, _ABOUT.get(found.family, ()))
    places = (subject.assembled.provenance.get(path) for path in fields)
    return next((place for place in places if place), subject.main or next(iter(subject.files), ""))


def _shown(findings: Iterable[Finding], project: Project) -> Iterator[Finding]:
    """With the paths that a person gave, instead of names inside of the project."""
    for found in findings:
        name, separator, line = found.where.rpartition(":")
        if not line.isdigit():
            name, separator, line = found.where, "", ""
        name = name or project.main or next(iter(project.files), "")
        yield replace(found, where=f"{project.shown.get(name, name)}{separator}{line}")


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by place; what the machine has to say comes last."""

    def place(found: Finding) -> tuple[int, bool, str, int, str]:
        name, _, line = found.where.rpartition(":")
        number = int(line) if line.isdigit() and len(line) < 10 else 0
        return ORDER[found.severity], found.family == "verification", name or found.where, number, found.rule

    return tuple(sorted(findings, key=place))
