"""Calls of independent NFS clients to `nocopy serve nfs`, compared with the directory itself. Prints a table; exits with 1 if a verdict is not good."""
import os, re, stat, subprocess, sys, tempfile

import nfs_rs

nocopy, version_of_libnfs = sys.argv[1:]
IS_ROOT = os.geteuid() == 0
DATA = os.urandom(3_000_001)


class Scene:
    def __init__(self, around):
        self.directory = os.path.join(around, "exported")
        os.mkdir(self.directory)
        options = ["--writable", "--listen", "127.0.0.1:0", "--state", os.path.join(around, "state")]
        options += ["--no-root-squash", "--insecure"] if IS_ROOT else []
        command = [nocopy, "serve", "nfs", self.directory, *options]
        self.server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        while not (found := re.search(r"nfs://127.0.0.1:(\d+)/", line := self.server.stderr.readline())):
            assert line, "the server has ended"
        self.port = int(found[1])
        url = f"nfs://127.0.0.1:{self.port}{self.directory}?version=3&mountport={self.port}"
        user = {"uid": os.geteuid(), "gid": os.getegid()}
        self.client = nfs_rs.Client.connect(url, versions=["3"], nfs_port=self.port, mount_port=self.port, noresvport=True, **user)

    def at(self, name):
        return os.path.join(self.directory, name)

    def put(self, name, data=b"content"):
        with open(self.at(name), "wb") as file:
            file.write(data)
        return name

    def libnfs(self, program, *words):
        url = lambda name: f"nfs://127.0.0.1{self.directory}/{name}?nfsport={self.port}&mountport={self.port}&version=3"
        words = [url(word[1:]) if word.startswith("@") else word for word in words]
        return subprocess.run([program, *words], capture_output=True, timeout=60)

    def end(self):
        self.client.close()
        self.server.terminate()
        self.server.wait()


def refused(error, call, *words):
    try:
        call(*words)
    except error:
        return True
    raise AssertionError("it was not refused")


def too_long(call, *words):
    """Refused by a status of the procedure, NFS3ERR_NAMETOOLONG."""
    try:
        call(*words)
    except OSError as error:
        assert re.search("name is too long", str(error)), error
    else:
        raise AssertionError("it was not refused")


def same(one, other):
    assert one == other, f"{one!r} is not {other!r}"


def get_attributes(s):
    s.put("attributes")
    found, own = s.client.stat("attributes"), os.stat(s.at("attributes"))
    same((found.size, found.nlink, found.uid, found.gid, found.fileid), (own.st_size, own.st_nlink, own.st_uid, own.st_gid, own.st_ino))
    same((found.mtime, found.mode & 0o7777), (own.st_mtime_ns, own.st_mode & 0o7777))


def set_attributes(s):
    s.put("set")
    s.client.chmod("set", 0o640)
    s.client.utime("set", ns=(5_000_000_006, 7_000_000_008))
    s.client.truncate("set", 3)
    own = os.stat(s.at("set"))
    same((own.st_mode & 0o7777, own.st_size), (0o640, 3))
    s.client.utime("set", ns=(5_000_000_006, 7_000_000_008))
    own = os.stat(s.at("set"))
    same((own.st_atime_ns, own.st_mtime_ns), (5_000_000_006, 7_000_000_008))


def look_up(s):
    s.put("there")
    assert s.client.exists("there") and not s.client.exists("absent")
    refused(FileNotFoundError, s.client.stat, "absent")
    for length in (256, 5000):
        too_long(s.client.stat, "a" * length)


def access(s):
    s.put("access")
    assert s.client.access("access", os.R_OK)


def link_and_read_link(s):
    s.put("target")
    s.client.symlink("target", "link")
    same((os.readlink(s.at("link")), s.client.readlink("link")), ("target", "target"))
    too_long(s.client.symlink, "a" * 5000, "long")


def read(s):
    s.put("read", DATA)
    with s.client.open("read", "rb") as file:
        parts = b""
        while part := file.read(1 << 20):
            parts += part
    assert parts == DATA


def write_and_commit(s):
    with s.client.open("written", "wb") as file:
        rest = memoryview(DATA)
        while rest:
            rest = rest[file.write(rest):]
        file.flush()
    assert open(s.at("written"), "rb").read() == DATA


def make_and_remove(s):
    s.client.mkdir("directory")
    s.client.touch("directory/file")
    refused(FileExistsError, s.client.mkdir, "directory")
    try:
        s.client.rmdir("directory")
        raise AssertionError("a directory with a file was removed")
    except OSError:
        pass
    s.client.remove("directory/file")
    s.client.rmdir("directory")
    assert not os.path.exists(s.at("directory"))


def rename_and_link(s):
    s.put("old")
    s.client.rename("old", "new")
    s.client.link("new", "other")
    assert os.path.samefile(s.at("new"), s.at("other")) and not os.path.exists(s.at("old"))


def list_directory(s):
    os.mkdir(s.at("many"))
    names = {f"name {number}" for number in range(3000)}
    for name in names:
        s.put(f"many/{name}", b"")
    same(set(s.client.listdir("many")), names)
    same({entry.name: entry.info.fileid for entry in s.client.scandir("many")}, {one.name: one.inode() for one in os.scandir(s.at("many"))})


def file_system(s):
    status, own = s.client.fs_stat(), os.statvfs(s.directory)
    same((status.total_bytes, status.total_files), (own.f_blocks * own.f_frsize, own.f_files))
    about = s.client.fs_info()
    assert about.supports_links and about.supports_symlinks and about.can_set_time


def programs_read(s):
    s.put("by program", DATA)
    listed = s.libnfs("nfs-ls", "@")
    assert listed.returncode == 0 and b"by program" in listed.stdout, listed.stderr
    assert s.libnfs("nfs-cat", "@by program").stdout == DATA
    assert s.libnfs("nfs-cat", "@absent").returncode != 0


def programs_write(s):
    with tempfile.NamedTemporaryFile() as file:
        file.write(DATA)
        file.flush()
        done = s.libnfs("nfs-cp", file.name, "@copied")
        assert done.returncode == 0, done.stderr
    assert open(s.at("copied"), "rb").read() == DATA


NFS_RS = f"nfs-rs {nfs_rs.__version__}"
LIBNFS = f"libnfs-utils {version_of_libnfs}"
ALL = [
    ("GETATTR", NFS_RS, get_attributes),
    ("SETATTR", NFS_RS, set_attributes),
    ("MOUNT, LOOKUP; names of 256 and 5,000 bytes", NFS_RS, look_up),
    ("ACCESS", NFS_RS, access),
    ("SYMLINK, READLINK; a path of 5,000 bytes", NFS_RS, link_and_read_link),
    ("READ", NFS_RS, read),
    ("CREATE, WRITE, COMMIT", NFS_RS, write_and_commit),
    ("MKDIR, CREATE, REMOVE, RMDIR", NFS_RS, make_and_remove),
    ("RENAME, LINK", NFS_RS, rename_and_link),
    ("READDIR, READDIRPLUS of 3,000 names", NFS_RS, list_directory),
    ("FSSTAT, FSINFO", NFS_RS, file_system),
    ("MOUNT, LOOKUP, GETATTR, READDIRPLUS, READ", LIBNFS + ": `nfs-ls`, `nfs-cat`", programs_read),
    ("CREATE, SETATTR, WRITE", LIBNFS + ": `nfs-cp`", programs_write),
]

is_good = True
with tempfile.TemporaryDirectory() as around:
    scene = Scene(around)
    print("| calls | client | verdict |\n|---|---|---|")
    for calls, client, check in ALL:
        try:
            check(scene)
            verdict = "as in the directory itself"
        except Exception as error:
            is_good, verdict = False, f"FAILED: {type(error).__name__}: {str(error)[:200]}"
        print(f"| {calls} | {client} | {verdict} |")
    scene.end()
sys.exit(0 if is_good else 1)
