"""An exported detector scores rows in JavaScript, by the program of the guide."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from skebm import EnergyOutlierDetector
from skebm.export import to_onnx
from tests.export.test_detectors import frame, odd_frame
from tests.support.exports import METHODS, assert_equal_scores
from tests.support.tiers import full

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "export.md"


def has_runtime():
    """Whether Node.js finds onnxruntime-web, in the folders of NODE_PATH."""
    if shutil.which("node") is None:
        return False
    asked = ["node", "-e", "require('onnxruntime-web')"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@full
def test_scores_in_javascript_are_those_of_the_detector(tmp_path):
    onnx = pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    if not has_runtime():
        pytest.skip("needs Node.js, npm install onnxruntime-web, and NODE_PATH=.../node_modules")
    model = EnergyOutlierDetector(method="conformal", random_state=0).fit(frame(1500, 0))
    exported, X = to_onnx(model), odd_frame()
    assert any(node.op_type == "Scan" for node in exported.graph.node)
    onnx.save(exported, tmp_path / "detector.onnx")
    (program,) = re.findall(r"```js\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "score.js").write_text(program)
    columns = {name: X[name].astype(object).where(X[name].notna(), None).tolist() for name in X}
    columns["smokes"] = [None if one is None else float(one) for one in columns["smokes"]]
    (tmp_path / "rows.json").write_text(json.dumps(columns))
    asked = ["node", "score.js", "detector.onnx", "rows.json"]
    ran = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert set(found) == {"log_density", "decision", "predict", "p_value"}
    for name, texts in found.items():
        values = [float(text.replace("Infinity", "inf")) for text in texts]
        expected = getattr(model, METHODS[name])(X)
        assert_equal_scores(values, expected.astype(float), 1e-6)
