//! Units of systemd: judged by systemd-analyze(1), and each `ExecStart` run by setpriv(1) as an ordinary user
//! with the unit's capabilities and limits, and nothing else.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::debian::package_path;
use super::roots::{self, CleanRoots, setpriv_list};
use super::tarball::copy;
use super::{Architecture, Release};
use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};

const UNITS: &str = "packaging/systemd";

/// As systemd gives a unit with `DynamicUser=`: a number without a name.
const USER: &str = "64000";

/// `DefaultLimitMEMLOCK=` of systemd, in KiB.
const MEMLOCK_KIB: u64 = 8192;

/// Recording lo: it receives datagrams all the time.
const RECORD: &str = "
file() { find /var/lib/nocopy-record -name '*.pcapng' -size +0 | head -n 1; }
until [ -n \"$(file)\" ]; do kill -0 $unit; sleep 0.1; done
until [ \"$(tcpdump -n -r \"$(file)\" udp port 9 2> /dev/null | wc -l)\" -gt 10 ]; do kill -0 $unit; sleep 0.1; done
kill $unit
wait $unit
";

/// Serving a directory with a file that only the capability lets it read.
const SERVE: &str = "
until nocopy cat nfs://127.0.0.1:2049/srv/data/secret > /tmp/read; do kill -0 $unit; sleep 0.1; done
cmp /tmp/read /srv/data/secret
kill $unit
wait $unit
";

/// A unit, or a drop-in of one: `Name=value` lines.
#[derive(Debug)]
struct Unit {
    text: String,
    instance: &'static str,
}

impl Unit {
    fn read(name: &str, instance: &'static str) -> Result<Self, Failed> {
        let path = repository_root().join(UNITS).join(name);
        let text =
            fs::read_to_string(&path).map_err(|error| Failed(format!("{}: {error}", path.display())))?;
        Ok(Self { text, instance })
    }

    /// The value of a setting, with the instance's name in it. Errors: there is none.
    fn value(&self, name: &str) -> Result<String, Failed> {
        let lines = self.text.lines().filter_map(|line| line.split_once('='));
        let found = lines.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back();
        let found = found.ok_or_else(|| Failed(format!("unit: it has no {name}=")))?;
        Ok(found.replace("%i", self.instance).replace("%I", &self.instance.replace('-', "/")))
    }

    /// The command that starts another one as the unit's would be started.
    fn setpriv(&self) -> Result<String, Failed> {
        let set = |name| {
            let value = self.value(name)?;
            Ok::<_, Failed>(format!("-all{}", setpriv_list(&value.split(' ').collect::<Vec<_>>())))
        };
        let (bounding, ambient) = (set("CapabilityBoundingSet")?, set("AmbientCapabilities")?);
        if self.value("NoNewPrivileges")? != "yes" {
            return Err(Failed("unit: NoNewPrivileges= is not yes".into()));
        }
        Ok(format!(
            "setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs --bounding-set={bounding} \
             --inh-caps={ambient} --ambient-caps={ambient}"
        ))
    }

    /// Lines that start the unit's command in the background, as `$unit`.
    fn start_lines(&self) -> Result<String, Failed> {
        let (state, mode) = (self.value("StateDirectory")?, self.value("StateDirectoryMode")?);
        Ok(format!(
            "ulimit -l {MEMLOCK_KIB}\n\
             install -d -m {mode} -o {USER} -g {USER} /var/lib/{state}\n\
             export STATE_DIRECTORY=/var/lib/{state}\n\
             export {environment}\n\
             {setpriv} {command} & unit=$!\n",
            environment = self.value("Environment")?,
            setpriv = self.setpriv()?,
            command = self.value("ExecStart")?,
        ))
    }
}

/// Verifies all units, and runs each in every root of Debian, where the package is installed.
pub(super) fn try_in_clean_roots(release: &Release, roots: &CleanRoots) -> Outcome {
    let tries = || {
        let package = package_path(release, Architecture::native()?);
        verify_units(&package)?;
        let files = roots::empty_directory("package")?;
        copy(&package, &files.join("nocopy.deb"))?;
        Ok::<_, Failed>((files, unit_scripts()?))
    };
    let (files, scripts) = match tries() {
        Ok(ready) => ready,
        Err(failed) => return failed.into(),
    };
    let mut outcome = Outcome::passed();
    for debian in &roots.debian {
        for (name, lines) in &scripts {
            let lines = format!("dpkg --install /files/nocopy.deb\n{lines}");
            outcome = outcome.merged_with(debian.with_files(&files).run_lines(name, &lines));
        }
    }
    if may_raise_locked_memory() {
        outcome
    } else {
        let name = "a port of default size with the drop-in";
        outcome
            .merged_with(Outcome::unavailable(name, "CAP_SYS_RESOURCE, to raise the limit of locked memory"))
    }
}

/// Whether processes started here may have a higher limit than this one.
fn may_raise_locked_memory() -> bool {
    let is_unlimited = getrlimit(Resource::Memlock).maximum.is_none();
    is_unlimited || capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// Each unit with the lines that run and check its command.
fn unit_scripts() -> Result<Vec<(&'static str, String)>, Failed> {
    let record = Unit::read("nocopy-record@.service", "lo")?;
    let serve = Unit::read("nocopy-serve-nfs@.service", "srv-data")?;
    let secret = "mkdir -p /srv/data\necho secret > /srv/data/secret\nchmod 600 /srv/data/secret\n";
    let ports = Unit::read("nocopy-ports.conf", "")?;
    let megabytes = ports.value("LimitMEMLOCK")?;
    let megabytes: u64 = megabytes
        .trim_end_matches('M')
        .parse()
        .map_err(|_| Failed(format!("nocopy-ports.conf: LimitMEMLOCK={megabytes} is not a number of MiB")))?;
    let setpriv = ports.setpriv()?;
    // A port that only sends is small enough for any limit.
    let sender = format!("{setpriv} nocopy send nc0 --count 10\n");
    // Its peer sends until the port has received a packet.
    let receiver = format!(
        "ulimit -l {}\n{setpriv} nocopy sniff nc1 --take --count 1 & unit=$!\n\
         while kill -0 $unit 2> /dev/null; do nocopy send nc0 --count 10; sleep 0.1; done\nwait $unit\n",
        megabytes * 1024,
    );
    let mut scripts = vec![
        ("nocopy-record@lo", format!("{}{RECORD}", record.start_lines()?)),
        ("nocopy-serve-nfs@srv-data", format!("{secret}{}{SERVE}", serve.start_lines()?)),
        ("a port that only sends, with the drop-in", sender),
    ];
    if may_raise_locked_memory() {
        scripts.push(("a port of default size with the drop-in", receiver));
    }
    Ok(scripts)
}

/// systemd-analyze has nothing to report about the units as they are packed.
fn verify_units(package: &Path) -> Result<(), Failed> {
    let root = roots::empty_directory("unpacked-package")?;
    let [package, root] = [package, &root].map(|path| path.display().to_string());
    CommandStep::new("unpack the package", "dpkg-deb", &["--extract", &package, &root]).run()?;
    let units = ["nocopy-record@lo.service", "nocopy-serve-nfs@srv-data.service"];
    let root = format!("--root={root}");
    let what = [&["verify", "--man=no", "--recursive-errors=no", &root][..], &units].concat();
    let (code, printed) = CommandStep::new("units", "systemd-analyze", &what).run_for_status()?;
    match (code, printed.trim()) {
        (Some(0), "") => Ok(()),
        _ => Err(Failed(format!("systemd-analyze verify\n{printed}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_with_the_capabilities_of_their_unit() {
        let lines = |name, instance| Unit::read(name, instance).unwrap().start_lines().unwrap();
        let record = lines("nocopy-record@.service", "lo");
        let command = "/usr/bin/nocopy record lo -o ${STATE_DIRECTORY}/lo.pcapng --force $OPTIONS & unit=$!";
        let sets = "--bounding-set=-all,+net_raw --inh-caps=-all,+net_raw --ambient-caps=-all,+net_raw";
        assert!(record.contains(&format!("{sets} {command}\n")), "{record}");
        let serve = lines("nocopy-serve-nfs@.service", "srv-data");
        assert!(serve.contains("/usr/bin/nocopy serve nfs /srv/data --state"), "{serve}");
        assert!(serve.contains("-m 0700 -o 64000 -g 64000 /var/lib/nocopy-serve-nfs/srv-data\n"), "{serve}");
    }

    #[test]
    fn a_missing_setting_is_named() {
        let Failed(why) = Unit { text: "[Service]\nUser=a\n".into(), instance: "" }.setpriv().unwrap_err();
        assert_eq!(why, "unit: it has no CapabilityBoundingSet=");
    }
}
