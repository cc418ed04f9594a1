"""Builds the wheel of this package, which is a few files of Python: no tool has to be downloaded for that.

The hooks are those of PEP 517, the form of a wheel is that of PEP 427.
"""
import base64
import hashlib
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).parent
NAME = "headway_debox"


def project(key):
    """A text of the table [project], read without a TOML parser, which Python has since 3.11."""
    text = (HERE / "pyproject.toml").read_text()
    return re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE).group(1)


def files():
    """The files of the wheel: their names in it and their bytes."""
    metadata = (
        f"Metadata-Version: 2.1\nName: {project('name')}\nVersion: {project('version')}\n"
        f"Summary: {project('description')}\nRequires-Python: {project('requires-python')}\n"
        f"License: {project('license')}\nDescription-Content-Type: text/markdown\n\n"
    ) + (HERE / "README.md").read_text()
    information = f"{NAME}-{project('version')}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: headway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for path in sorted((HERE / "src" / NAME).glob("*.py")):
        yield f"{NAME}/{path.name}", path.read_bytes()
    yield f"{information}/METADATA", metadata.encode()
    yield f"{information}/WHEEL", wheel.encode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel into a directory and returns its name."""
    name = f"{NAME}-{project('version')}-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            record += f"{path},sha256={digest},{len(content)}\n"
            wheel.writestr(path, content)
        path = f"{NAME}-{project('version')}.dist-info/RECORD"
        wheel.writestr(path, f"{record}{path},,\n")
    return name


def build_sdist(sdist_directory, config_settings=None):
    """Not offered: the wheel is the same for every machine."""
    raise NotImplementedError("build the wheel: pip wheel bindings/python")
