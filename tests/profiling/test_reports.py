"""Reports are small files in the documented schemas: Nsight Systems' SQLite export, Nsight Compute's CSV pages."""

import sqlite3

import pytest

from gpulayers.profiling.reports import read_report
from gpulayers.profiling.table import Key, Row
from gpulayers.storage import FileError

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, memoryBandwidth INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, blockX INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
    text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER,
    jsonText TEXT);
"""
PROCESS = 7 << 24
MAIN, WORKER = PROCESS | 11, PROCESS | 12


class Report:
    """An nsys export under construction; times in microseconds."""

    def __init__(self, path, schema=SCHEMA):
        self.path, self.database, self.ids, self.calls = path, sqlite3.connect(path), {}, 0
        self.database.executescript(schema)

    def string(self, text):
        if text not in self.ids:
            self.ids[text] = len(self.ids) + 1
            self.database.execute("INSERT INTO StringIds VALUES (?, ?)", (self.ids[text], text))
        return self.ids[text]

    def nvtx(self, text, start, end, thread=MAIN, domain=1, kind=59, payload=None, registered=True):
        name = {"textId": self.string(text)} if registered else {"text": text}
        values = {"start": start * 1000, "end": end and end * 1000, "eventType": kind, "globalTid": thread, **name}
        self.insert("NVTX_EVENTS", domainId=domain, int64Value=payload, **values)

    def kernel(self, name, launched, start, length, thread=MAIN, process=PROCESS, call=None):
        self.calls = call or self.calls + 1
        times = {"start": start * 1000, "end": (start + length) * 1000, "correlationId": self.calls}
        names = {"demangledName": self.string(f"{name}(float*)"), "shortName": self.string(name)}
        sizes = {"deviceId": 0, "contextId": 1, "streamId": 7, "gridX": 1, "blockX": 32}
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", globalPid=process, **times, **names, **sizes)
        times = {"start": launched * 1000, "end": launched * 1000 + 5, "correlationId": self.calls}
        call = {"eventClass": 0, "nameId": self.string("cuLaunchKernel"), "returnValue": 0}
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", globalTid=thread, **times, **call)

    def insert(self, table, **values):
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))

    def read(self):
        self.database.commit()
        self.database.close()
        return read_report(self.path)


@pytest.fixture
def report(tmp_path):
    made = Report(tmp_path / "r.sqlite")
    yield made
    made.database.close()


def test_kernels_by_layer(report):
    report.nvtx("gpulayers", 0, None, domain=3, kind=75)
    report.nvtx("elsewhere", 0, None, domain=4, kind=75)
    for at in (100, 300):
        report.nvtx("step", at, at + 100, domain=3)
        report.nvtx("blocks.0 Block.forward", at + 1, at + 40, domain=3)
        report.nvtx("blocks.0.ln_1 LayerNorm.forward", at + 10, at + 20, domain=3)
        report.nvtx("op layernorm", at + 11, at + 19, domain=3)
        report.nvtx("launch layernorm", at + 12, at + 18, domain=3, payload=3000)
        report.nvtx("head TiedLinear.backward", at + 12, at + 18, domain=4)  # of another library
        report.nvtx("optimizer", at + 60, at + 90, domain=3, registered=False)
        report.kernel("layernorm", at + 15, at + 50, 2)  # runs long after its launch
        report.kernel("gemm", at + 30, at + 60, 4)
        report.kernel("adam", at + 65, at + 65, 10)
    report.kernel("memset", 450, 450, 1)
    report.insert("TARGET_INFO_GPU", vmId=0, id=0, name="a GPU", memoryBandwidth=2_000_000_000)
    profile = report.read()
    assert profile.rows == {
        Key("blocks.0.ln_1", "forward", "layernorm"): Row(2, pytest.approx(4e-6), 6000),
        Key("blocks.0", "forward", "gemm"): Row(2, pytest.approx(8e-6)),
        Key("optimizer", "", "adam"): Row(2, pytest.approx(20e-6)),
        Key("", "", "memset"): Row(1, pytest.approx(1e-6)),
    }
    assert (profile.steps, profile.bandwidth, profile.notes) == (2, 2e9, ())


def test_threads_and_processes_are_apart(report):
    other = 8 << 24
    report.nvtx("wte Embedding.forward", 0, 100, thread=MAIN)
    report.nvtx("wpe LearnedPositions.forward", 0, 100, thread=WORKER)
    report.kernel("a", 10, 10, 1, thread=MAIN)
    report.kernel("b", 10, 10, 1, thread=WORKER)
    report.kernel("c", 10, 10, 1, thread=other | 11, process=other, call=1)  # the correlation id of a
    profile = report.read()
    assert {key: row.launches for key, row in profile.rows.items()} == {
        Key("wte", "forward", "a"): 1,
        Key("wpe", "forward", "b"): 1,
        Key("", "", "c"): 1,
    }
    assert profile.steps == 0
    assert "were the ranges on" in profile.notes[0]


def test_older_schema_without_payloads(tmp_path):
    start = SCHEMA.index("doubleValue REAL")
    schema = SCHEMA[:start].replace("uint64Value INTEGER,\n    int64Value INTEGER, ", "x INTEGER, ") + SCHEMA[start:]
    made = Report(tmp_path / "r.sqlite", schema.replace("CREATE TABLE TARGET_INFO_GPU", "CREATE TABLE OTHER"))
    made.insert("NVTX_EVENTS", start=0, end=9000, eventType=59, globalTid=MAIN, text="step", domainId=0)
    made.kernel("layernorm", 1, 1, 2)
    profile = made.read()
    assert profile.rows == {Key("", "", "layernorm"): Row(1, pytest.approx(2e-6))}
    assert (profile.steps, profile.bandwidth) == (1, None)


RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
TAIL = "none:none:ARGB:0xff008000:registered:x"
OPEN = (
    f'13416  ""<default domain>:mine:{TAIL}""  ""gpulayers:step:{TAIL}""  '
    f'""gpulayers:blocks.1.ln_2 LayerNorm.backward:{TAIL}""  ""gpulayers:launch layernorm_backward:{TAIL}"" '
)
RAW = f'''step 1/2: validation loss 5.1, "ID" and so on
==PROF== Disconnected from process 42
"ID","Process ID","Kernel Name","{RANGES}","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",\
"dram__bytes.sum.pct_of_peak_sustained_elapsed","launch__registers_per_thread"
"","","","","us","Mbyte","Kbyte","%","register/thread"
"0","42","layernorm_backward","{OPEN}","1,250.00","2.5","500","40.0","32"
"1","42","layernorm_backward","{OPEN}","750.00","1.5","500","50.0","32"
"2","42","void gemm<float, 128>(int)","","10.5","n/a","n/a","n/a","64"
'''
DETAILS = f'''"ID","Process ID","Process Name","{RANGES}","Kernel Name","Section Name","Metric Name","Metric Unit",\
"Metric Value"
"0","42","python","{OPEN}","layernorm_backward","GPU Speed Of Light Throughput","Duration","us","1,250.00"
"0","42","python","{OPEN}","layernorm_backward","Command line profiler metrics","dram__bytes_read.sum","Mbyte","2.5"
"0","42","python","{OPEN}","layernorm_backward","Command line profiler metrics","dram__bytes_write.sum","byte","500,000"
"0","42","python","{OPEN}","layernorm_backward","Launch Statistics","Registers Per Thread","register/thread","32"
"1","42","python","","gemm","GPU Speed Of Light Throughput","Duration","nsecond","900"
==PROF== Disconnected
'''


def test_ncu_raw_page(tmp_path):
    (tmp_path / "r.csv").write_text(RAW)
    profile = read_report(tmp_path / "r.csv")
    assert profile.rows == {
        Key("blocks.1.ln_2", "backward", "layernorm_backward"): Row(2, pytest.approx(2e-3), pytest.approx(5e6)),
        Key("", "", "void gemm<float, 128>(int)"): Row(1, pytest.approx(10.5e-6)),
    }
    assert profile.bandwidth == pytest.approx(3e6 / 1.25e-3 / 0.4)  # of the launch that moved the most


def test_ncu_details_page(tmp_path):
    (tmp_path / "r.csv").write_text(DETAILS)
    profile = read_report(tmp_path / "r.csv")
    assert profile.rows == {
        Key("blocks.1.ln_2", "backward", "layernorm_backward"): Row(1, pytest.approx(1.25e-3), pytest.approx(3e6)),
        Key("", "", "gemm"): Row(1, pytest.approx(9e-7)),
    }


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("r.txt", b"hello", "is neither a SQLite export of nsys nor a CSV export of ncu"),
        ("r.csv", b"", "is neither a SQLite export of nsys nor a CSV export of ncu"),
        ("r.sqlite", b"SQLite format 3\0" + b"\1" * 200, "is no SQLite export of nsys with CUDA and NVTX in it"),
        ("r.nsys-rep", b"x", "must be exported first: nsys export --type=sqlite -o "),
        ("r.ncu-rep", b"x", "must be exported first: ncu --import "),
    ],
)
def test_other_files_are_refused(name, content, text, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=text):
        read_report(tmp_path / name)


def test_no_such_file(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*No such file"):
        read_report(tmp_path / "r.sqlite")


def test_a_database_without_kernels(tmp_path):
    made = Report(tmp_path / "r.sqlite", SCHEMA.replace("CUPTI_ACTIVITY_KIND_KERNEL", "OTHER"))
    with pytest.raises(FileError, match="no such table: CUPTI_ACTIVITY_KIND_KERNEL"):
        made.read()
