"""The commands that look at runs, or go on with them: `adaptcl resume` and `adaptcl compare`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

Told = tuple[int, str, str]
Command = Callable[..., Told]


def refused(told: Told, sentence: str) -> None:
    """Exit status 2, one sentence, nothing else."""
    assert told == (2, "", f"adaptcl: {sentence}\n")


def test_a_finished_run_has_nothing_to_resume(command: Command, runs: Path) -> None:
    paths = [str(runs / "both" / name) for name in ("fedavg-s", "adaptcl")]
    status, output, errors = command("resume", *paths)
    assert (status, errors) == (0, "")
    assert output.startswith(f"{paths[0]} is finished already.\n{paths[1]} is finished already.\n")


def test_what_is_no_run_cannot_be_resumed_or_compared(command: Command) -> None:
    Path("empty").mkdir()
    for verb in ("resume", "compare"):
        refused(command(verb, "absent"), "There is no run folder absent.")
        refused(command(verb, "empty"), "empty is not a run folder: it holds no config.toml.")
        status, _, errors = command(verb)
        assert (status, errors) == (
            2,
            f"adaptcl: the following arguments are required: RUN; `adaptcl {verb} --help` says "
            "more.\n",
        )


def test_the_folder_of_several_runs_stands_for_what_is_unfinished_in_it(
    command: Command, runs: Path
) -> None:
    Path("two/adaptcl").mkdir(parents=True)
    shutil.copy(runs / "both" / "adaptcl" / "config.toml", "two/adaptcl")
    shutil.copytree(runs / "both" / "fedavg-s", "two/fedavg-s")
    status, output, errors = command("resume", "two")
    assert (status, errors) == (0, "")
    assert "adaptcl finished 2 rounds" in output
    assert "two/fedavg-s is finished already." in output
    assert Path("two/figures/overview.png").exists()
    for name in ("rounds.jsonl", "model.safetensors"):
        before = runs / "both" / "adaptcl" / name
        assert Path("two/adaptcl", name).read_bytes() == before.read_bytes()


def test_the_folder_of_several_runs_is_compared_as_its_runs_are(
    command: Command, runs: Path
) -> None:
    both = runs / "both"
    told = command("compare", str(both / "adaptcl"), str(both / "fedavg-s"), "--markdown")
    assert told[0] == 0
    assert told[1].index("| fedavg-s |") < told[1].index("| adaptcl |")
    assert command("compare", str(both), "--markdown") == told
    caught = sorted(map(str, both.glob("*")))
    assert str(both / "figures") in caught
    assert command("compare", *caught, "--markdown") == told
    refused(
        command("compare", str(both / "figures")),
        f"{both / 'figures'} is not a run folder: it holds no config.toml.",
    )


def test_the_folder_above_folders_of_runs_stands_for_all_of_them(
    command: Command, runs: Path
) -> None:
    paths = [str(runs / name) for name in ("both", "seed2")]
    told = command("compare", *paths, "--markdown", "--over-seeds")
    assert told[0] == 0
    assert "| fedavg-s, 2 runs |" in told[1]
    assert command("compare", str(runs), "--markdown", "--over-seeds") == told


def table(output: str) -> list[str]:
    """The lines of a comparison, from `run`, `resume` or `compare`."""
    return [line for line in output.splitlines() if line.startswith(("┃", "│"))]


def test_the_same_runs_make_the_same_table_however_it_is_asked_for(command: Command) -> None:
    job = "--model=small --data=digits --workers=2 --rounds=2 --epochs=0.2"
    words = (*job.split(), "--strategy", "fedavg,adaptcl", "--out", "both")
    whole = table(command("run", *words)[1])
    (speed_ups,) = (line.split("│") for line in whole if "speed-up" in line)
    assert speed_ups[2].strip() == "1.00×"
    for again in (
        ("resume", "both"),
        ("compare", "both", "--over-seeds"),
        ("compare", "both/adaptcl", "both/fedavg"),
    ):
        assert table(command(*again)[1]) == whole


def test_a_run_that_cannot_be_resumed_does_not_keep_others_from_it(
    command: Command, runs: Path
) -> None:
    for name in ("a-damaged", "b-foreign", "c-whole"):
        Path("some", name).mkdir(parents=True)
        shutil.copy(runs / "both" / "adaptcl" / "config.toml", f"some/{name}")
    Path("some/a-damaged/rounds.jsonl").write_text("{}\n")
    Path("broken.py").write_text("def load(data_dir):\n    raise OSError('the disk is gone')\n")
    config = Path("some/b-foreign/config.toml")
    config.write_text(config.read_text().replace('data = "digits"', 'data = "broken:load"'))
    status, output, errors = command("resume", "some")
    assert status == 2
    assert "adaptcl finished 2 rounds" in output
    assert "run      some/c-whole" in output
    assert "Traceback" in errors
    assert errors.endswith(
        "adaptcl: 2 of 3 runs could not be resumed:\n"
        "some/a-damaged: some/a-damaged/rounds.jsonl is damaged: line 1 is not a round.\n"
        "some/b-foreign: OSError: the disk is gone\n"
    )
    Path("some/c-whole/summary.json").write_text("{")
    for named in (["some/a-damaged", "absent"], ["some/c-whole", "absent"]):
        status, output, errors = command("resume", *named)
        assert (status, output) == (2, "")
        assert errors.startswith("adaptcl: 2 of 2 runs could not be resumed:\n")


def test_a_run_from_python_is_resumed_from_python(command: Command) -> None:
    Path("run").mkdir()
    Path("run/config.toml").write_text(
        'strategy = "adaptcl"\nmodel = "(given from Python)"\ndata = "digits"\n'
    )
    refused(
        command("resume", "run"),
        "run was started from Python with its own model or data; go on with it by "
        "adaptcl.run(..., out=..., resume=True).",
    )


def test_runs_are_compared_in_a_table_and_in_figures(command: Command, runs: Path) -> None:
    paths = [str(runs / "both" / "fedavg-s"), str(runs / "both" / "adaptcl")]
    status, output, errors = command("compare", *paths, "--out", "drawn")
    assert (status, errors) == (0, "")
    assert all(len(line) <= 80 for line in output.splitlines()[:12])
    assert "parameters saved" in output
    assert "figures  drawn (overview.png, " in output
    assert (Path("drawn") / "overview.png").exists()


def test_a_comparison_can_be_markdown_and_over_seeds(command: Command, runs: Path) -> None:
    paths = [str(runs / "both" / "fedavg-s"), str(runs / "seed2"), str(runs / "both" / "adaptcl")]
    status, output, errors = command("compare", *paths, "--markdown", "--over-seeds")
    assert (status, errors) == (0, "")
    rows = [line for line in output.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert rows[2].startswith("| fedavg-s, 2 runs |")
    assert list(Path().iterdir()) == []


def test_figures_that_cannot_be_written_are_told_of(command: Command, runs: Path) -> None:
    Path("file").write_text("")
    status, _, errors = command("compare", str(runs / "seed2"), "--out", "file")
    assert (status, errors) == (2, "adaptcl: file cannot be written: File exists.\n")


def test_a_run_named_twice_is_one_run(command: Command, runs: Path) -> None:
    both, second = runs / "both", runs / "seed2"
    told = command("compare", str(both / "fedavg-s"), str(second), "--markdown", "--over-seeds")
    assert "| fedavg-s, 2 runs |" in told[1]
    Path("link").symlink_to(both / "fedavg-s")
    names = [both / "fedavg-s", Path("link"), both / "adaptcl" / ".." / "fedavg-s", second, second]
    assert command("compare", *map(str, names), "--markdown", "--over-seeds") == told


def test_a_comparison_is_written_for_programs_too(command: Command, runs: Path) -> None:
    words = ("compare", str(runs / "both"), "--csv", "table.csv", "--target-accuracy", "50")
    status, output, errors = command(*words)
    assert (status, errors) == (0, "")
    assert "virtual time to 50 %" in output
    assert output.endswith("table    table.csv\n")
    heading, *lines = Path("table.csv").read_text().splitlines()
    assert heading.startswith("run,strategy,seeds,finished,target_accuracy,target_reached,")
    assert [line.split(",")[:5] for line in lines] == [
        ["fedavg-s", "fedavg-s", "1", "true", "0.5"],
        ["adaptcl", "adaptcl", "1", "true", "0.5"],
    ]
    refused(
        command("compare", str(runs / "both"), "--csv", "no/table.csv"),
        "no/table.csv cannot be written: No such file or directory.",
    )


def test_a_target_accuracy_is_in_per_cent(command: Command, runs: Path) -> None:
    for word in ("0.8", "101"):
        refused(
            command("compare", str(runs / "both"), "--target-accuracy", word),
            "argument --target-accuracy: it must be in per cent, above 1 and at most 100; "
            "`adaptcl compare --help` says more.",
        )


def test_pictures_of_an_earlier_comparison_are_told_of_and_gone(
    command: Command, runs: Path
) -> None:
    Path("figures").mkdir()
    Path("figures/mine.png").write_text("")
    assert "removed" not in command("compare", str(runs / "both"))[1]
    assert Path("figures/retention-adaptcl.png").exists()
    output = command("compare", str(runs / "seed2"))[1]
    assert "removed  retention-adaptcl.png, update-times-adaptcl.png (drawn there by" in output
    assert "kept     mine.png (in figures, but not of these runs)" in output
    assert not Path("figures/retention-adaptcl.png").exists()
    assert Path("figures/mine.png").exists()


def test_resumed_runs_are_drawn_where_they_would_have_been(command: Command, runs: Path) -> None:
    shutil.copytree(runs / "both" / "fedavg-s", "some/a")
    shutil.copytree(runs / "both" / "adaptcl", "some/b")
    for name in ("fedavg-s", "adaptcl"):
        shutil.copytree(runs / "both" / name, f"some/job/{name}")
    words = ("some/a", "some/b", "some/job/fedavg-s", "some/job/adaptcl")
    status, output, errors = command("resume", *words)
    assert (status, errors) == (0, "")
    drawn = [line.split()[1] for line in output.splitlines() if line.startswith("figures")]
    assert sorted(drawn) == ["some/a/figures", "some/b/figures", "some/job/figures"]
    assert all(Path(folder, "overview.png").exists() for folder in drawn)
    assert not Path("some/figures").exists()
    assert not Path("figures").exists()
