"""docs/checkpoints.md asks Prometheus a question that it answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.house import tree
from tests.parts import need

TEST = """
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'ammeter_checkpoint_restores_total{{run="a",outcome="passed"}}', values: '3'}}
      - {{series: 'ammeter_checkpoint_restores_total{{run="a",outcome="failed"}}', values: '1'}}
      - {{series: 'ammeter_checkpoint_restores_total{{run="b",outcome="passed"}}', values: '2'}}
      - {{series: 'ammeter_checkpoint_restores_total{{run="b",outcome="failed"}}', values: '0'}}
    promql_expr_test:
      - expr: {question}
        eval_time: 0m
        exp_samples:
          - {{labels: '{{run="a"}}', value: 0.75}}
          - {{labels: '{{run="b"}}', value: 1}}
"""


def test_the_question_for_the_share_that_passes_is_answered_per_run(tmp_path: Path) -> None:
    (question,) = tree.fenced(tree.ROOT / "docs" / "checkpoints.md", "promql")
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    (tmp_path / "test.yaml").write_text(TEST.format(question=" ".join(question.split())))
    ran = subprocess.run([need("promtool"), "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
