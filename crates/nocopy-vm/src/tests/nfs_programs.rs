use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::failure::last_lines;
use crate::guest::Guest;
use crate::guest::controls::ComparedDirectories;
use crate::guest::filesystem::{SharedDirectory, remove_all, run_as_unprivileged_user};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "sqlite3 and git work on what Debian's kernel mounts from `nocopy serve nfs --writable`; with --soak also make with a C \
             compiler, a cargo build, and 20,000 operations of fsx (reads, writes, cuts, mapped pages)",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// The programs that `cargo xtask nightly nfs` installs, apart from those that it builds.
const FSX: &str = "../tools/bin/fsx";

/// How many lines of a failed script's output are printed.
const LINES: usize = 8;

/// A shell script that runs in an empty directory and fails if any result is wrong.
struct ShellScript {
    name: &'static str,
    text: &'static str,
    /// Run only with `--soak`.
    is_long: bool,
}

const SCRIPTS: &[ShellScript] = &[
    ShellScript { name: "sqlite3", text: SQLITE, is_long: false },
    ShellScript { name: "git", text: GIT, is_long: false },
    ShellScript { name: "make", text: MAKE, is_long: true },
    ShellScript { name: "cargo build", text: CARGO, is_long: true },
    ShellScript { name: "fsx", text: EXERCISER, is_long: true },
];

const SQLITE: &str = "
    rows=$((TIMES * 200))
    sqlite3 table 'create table t (a integer primary key, b text); create index i on t (b);'
    sqlite3 table \"with recursive n(i) as (select 1 union all select i + 1 from n where i < $rows) insert into t select i, hex(i * 7919) from n\"
    sqlite3 table 'begin; update t set b = b || a where a % 3 = 0; delete from t where a % 5 = 0; commit; vacuum'
    sqlite3 table 'begin; delete from t; rollback'
    test \"$(sqlite3 table 'pragma integrity_check')\" = ok
    test \"$(sqlite3 table 'select count(*) from t')\" = $((rows - rows / 5))
    test \"$(ls)\" = table
";

const GIT: &str = "
    export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
    git init --quiet --initial-branch main one
    cd one
    for i in $(seq $((TIMES * 8))); do mkdir -p d$((i % 5)); echo $i > \"d$((i % 5))/file $i\"; done
    git add --all
    git commit --quiet --message first
    git mv 'd1/file 1' moved
    rm 'd2/file 2'
    echo more >> 'd3/file 3'
    git commit --quiet --all --message second
    git clone --quiet --no-local . ../two
    git gc --quiet
    cd ../two
    git fsck --strict --no-progress
    test -z \"$(git status --porcelain)\"
    diff -r --exclude .git . ../one
    git checkout --quiet HEAD~1
    test -f 'd1/file 1' && test ! -e moved
    git checkout --quiet main
    test -f moved && test ! -e 'd2/file 2'
    git -C ../one fsck --strict --no-progress
";

const MAKE: &str = "
    for i in 1 2 3 4 5 6 7 8; do
        echo \"#include \\\"all.h\\\"\" > part$i.c
        echo \"int part$i(void) { return $i * FACTOR; }\" >> part$i.c
        echo \"int part$i(void);\" >> all.h
    done
    echo '#define FACTOR 3' >> all.h
    printf '#include <stdio.h>\\n#include \"all.h\"\\nint main(void) { printf(\"%%d\\\\n\", part1() + part8()); }\\n' > main.c
    printf 'CFLAGS = -O1 -g\\nobjects = $(patsubst %%.c,%%.o,$(wildcard *.c))\\nall: $(objects)\\n\\t$(CC) -o all $^\\n$(objects): all.h\\n' > Makefile
    make --silent -j 2
    test \"$(./all)\" = 27
    make --question
    echo '#define FACTOR 5' >> all.h
    sed -i '/FACTOR 3/d' all.h
    make --question && false
    make --silent -j 2
    test \"$(./all)\" = 45
    ar rcs parts.a part*.o
    nm parts.a | grep -q part8
";

const CARGO: &str = "
    export CARGO_HOME=$PWD/home RUSTC=$(dirname $CARGO)/rustc CARGO_INCREMENTAL=1
    mkdir -p package/src package/tests
    cd package
    printf '[package]\\nname = \"package\"\\nversion = \"0.1.0\"\\nedition = \"2024\"\\n' > Cargo.toml
    printf 'pub mod part;\\npub fn twice(n: u32) -> u32 { part::add(n, n) }\\n' > src/lib.rs
    printf 'pub fn add(a: u32, b: u32) -> u32 { a + b }\\n' > src/part.rs
    printf 'fn main() { println!(\"{}\", package::twice(21)); }\\n' > src/main.rs
    $CARGO build --offline --quiet
    test \"$(target/debug/package)\" = 42
    $CARGO build --offline 2>&1 | grep Compiling && false
    printf 'pub fn add(a: u32, b: u32) -> u32 { a + b + 1 }\\n' > src/part.rs
    $CARGO build --offline --quiet
    test \"$(target/debug/package)\" = 43
";

/// All operations that NFS version 3 can do: no file there is given room before it is written, nor has holes
/// made in it.
const EXERCISER: &str = "
    printf '[weights]\\nclose_open = 2\\ninvalidate = 1\\ntruncate = 10\\nfsync = 1\\nfdatasync = 1\\nsendfile = 3\\nposix_fadvise = 1\\ncopy_file_range = 3\\n' > settings
    mkdir traces
    $FSX -N 20000 -S $SEED -f settings -P traces file
";

fn run(guest: &Guest) -> Result<(), Failure> {
    let seed = guest.seed();
    let mut controls = ComparedDirectories::new(guest)?;
    let tools = if guest.is_soak() { Some(ToolCopies::new()?) } else { None };
    for script in SCRIPTS.iter().filter(|script| guest.is_soak() || !script.is_long) {
        let run =
            ScriptRun { script, tools: tools.as_ref(), seed, times: if guest.is_soak() { 10 } else { 1 } };
        controls.check_each_directory(script.name, |shared| run.failure(shared));
    }
    controls.finish(guest)
}

/// Programs in directories that the user without privileges cannot read, copied to where it can.
struct ToolCopies {
    directory: tempfile::TempDir,
}

impl ToolCopies {
    fn new() -> Result<Self, Failure> {
        let fsx = std::env::current_exe()?.with_file_name(FSX);
        if !fsx.exists() {
            return Err(Failure(format!(
                "{}: not there; 'cargo xtask nightly nfs' installs it",
                fsx.display()
            )));
        }
        // The toolchain that this program is built by.
        let toolchain =
            Path::new(env!("CARGO")).ancestors().nth(2).expect("cargo lies in bin of its toolchain");
        let tools = Self { directory: tempfile::tempdir()? };
        fs::set_permissions(tools.directory.path(), Permissions::from_mode(0o755))?;
        for (from, to) in
            [(toolchain, "toolchain"), (fsx.parent().expect("a file lies in a directory"), "fsx")]
        {
            fs::create_dir(tools.directory.path().join(to))?;
            mount_bind(from, tools.directory.path().join(to))?;
        }
        Ok(tools)
    }

    fn cargo_path(&self) -> PathBuf {
        self.directory.path().join("toolchain/bin/cargo")
    }

    fn fsx_path(&self) -> PathBuf {
        self.directory.path().join("fsx/fsx")
    }
}

impl Drop for ToolCopies {
    fn drop(&mut self) {
        for name in ["toolchain", "fsx"] {
            let _ = unmount(self.directory.path().join(name), UnmountFlags::DETACH);
        }
    }
}

struct ScriptRun<'a> {
    script: &'a ShellScript,
    tools: Option<&'a ToolCopies>,
    seed: u64,
    times: u32,
}

impl ScriptRun<'_> {
    fn failure(&self, shared: &SharedDirectory) -> Option<String> {
        let directory = shared.here.join(self.script.name);
        let done = run_as_unprivileged_user(|| {
            fs::create_dir(&directory)?;
            let done = self.shell_command(&directory).stdin(Stdio::null()).output()?;
            if !done.status.success() {
                let text = String::from_utf8_lossy(&done.stderr);
                let last = last_lines(&text, LINES).join("; ");
                return Err(Failure(format!("{}: {last}", done.status)));
            }
            remove_all(&directory)
        });
        match done {
            Ok(Ok(())) => None,
            Ok(Err(Failure(why))) | Err(why) => Some(why),
        }
    }

    fn shell_command(&self, directory: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-eux", "-c", self.script.text]).current_dir(directory);
        if let Some(tools) = self.tools {
            command.env("CARGO", tools.cargo_path()).env("FSX", tools.fsx_path());
        }
        command.env("SEED", self.seed.to_string()).env("TIMES", self.times.to_string());
        command
    }
}
