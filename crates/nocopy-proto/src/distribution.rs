//! What a distribution calls libpcap and tcpdump, by its os-release(5).

/// Where os-release(5) is, the first that exists.
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// How libpcap and how tcpdump is installed.
type InstallCommands = [&'static str; 2];

/// Distributions by `ID`; those that build on one of them name it in `ID_LIKE`.
const INSTALLS: [(&[&str], InstallCommands); 7] = [
    (&["debian", "ubuntu"], ["'apt install libpcap0.8'", "'apt install tcpdump'"]),
    (&["fedora", "rhel", "centos"], ["'dnf install libpcap'", "'dnf install tcpdump'"]),
    (&["alpine"], ["'apk add libpcap'", "'apk add tcpdump'"]),
    (&["arch"], ["'pacman -S libpcap'", "'pacman -S tcpdump'"]),
    (&["opensuse", "suse", "sles"], ["'zypper install libpcap1'", "'zypper install tcpdump'"]),
    (&["void"], ["'xbps-install libpcap'", "'xbps-install tcpdump'"]),
    (&["gentoo"], ["'emerge net-libs/libpcap'", "'emerge net-analyzer/tcpdump'"]),
];

/// How libpcap is installed on the system whose files are read: the command in quotes, or what to look for.
pub fn libpcap_install_command(read: impl Fn(&str) -> Option<String>) -> &'static str {
    install_commands(read)[0]
}

/// How tcpdump is installed there.
pub fn tcpdump_install_command(read: impl Fn(&str) -> Option<String>) -> &'static str {
    install_commands(read)[1]
}

fn install_commands(read: impl Fn(&str) -> Option<String>) -> InstallCommands {
    install_commands_for(&OS_RELEASE.iter().find_map(|path| read(path)).unwrap_or_default())
}

fn install_commands_for(os_release: &str) -> InstallCommands {
    let field = |name: &str| {
        let value = os_release.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().trim_matches(['"', '\'']).split_whitespace()
    };
    // `opensuse-leap` and `opensuse-tumbleweed` are both `opensuse`.
    let is = |id: &str, known: &&str| id == *known || id.split_once('-').is_some_and(|(id, _)| id == *known);
    let of = |id: &str| INSTALLS.iter().find(|(ids, _)| ids.iter().any(|known| is(id, known)));
    let found = field("ID").chain(field("ID_LIKE")).find_map(of);
    found.map_or(["the package libpcap", "the package tcpdump"], |(_, commands)| *commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distribution_has_its_libpcap_command() {
        for (os_release, command) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n", "'apt install libpcap0.8'"),
            ("ID=ubuntu\nID_LIKE=debian\n", "'apt install libpcap0.8'"),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "'apt install libpcap0.8'"),
            ("ID=fedora\n", "'dnf install libpcap'"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "'dnf install libpcap'"),
            ("ID=alpine\n", "'apk add libpcap'"),
            ("ID=arch\n", "'pacman -S libpcap'"),
            ("ID=manjaro\nID_LIKE=arch\n", "'pacman -S libpcap'"),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "'zypper install libpcap1'"),
            ("ID='sles'\nID_LIKE='suse'\n", "'zypper install libpcap1'"),
            ("ID=void\n", "'xbps-install libpcap'"),
            ("ID=gentoo\n", "'emerge net-libs/libpcap'"),
            ("VARIANT_ID=debian\nID=plan9\n", "the package libpcap"),
            ("", "the package libpcap"),
        ] {
            assert_eq!(install_commands_for(os_release)[0], command, "{os_release}");
        }
        let vendors = |path: &str| path.starts_with("/usr/").then(|| "ID=alpine".into());
        assert_eq!(libpcap_install_command(vendors), "'apk add libpcap'");
        assert_eq!(tcpdump_install_command(vendors), "'apk add tcpdump'");
    }
}
