//! The layers of a crate: modules that use only modules below them.
//!
//! A crate declares them in the documentation of its root: a block of text after [`HEADING`], one layer a
//! line, the highest first. A module may use those of the lines below its own. Tests are left out: tests of a
//! low layer may use higher ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::gate::Outcome;
use crate::imports::{CrateSources, SourceFile, read_source};
use crate::step::{Failed, repository_root};

const CRATES: [&str; 6] = [
    "crates/nocopy",
    "crates/nocopy-proto",
    "crates/nocopy-pcap",
    "crates/nocopy-sockets",
    "crates/nocopy-nfs",
    "crates/nocopy-python",
];

/// Marks the comment line before the declaration.
const HEADING: &str = "in their layers";

/// Checks every import in the crates that declare layers.
pub(crate) fn check_layers() -> Outcome {
    let check_all = || {
        let mut found = Vec::new();
        for name in CRATES {
            check_crate(&repository_root().join(name).join("src"), &mut found)?;
        }
        if found.is_empty() { Ok(()) } else { Err(Failed(format!("layers\n{}", found.join("\n")))) }
    };
    check_all().into()
}

fn check_crate(sources: &Path, found: &mut Vec<String>) -> Result<(), Failed> {
    let lib = sources.join("lib.rs");
    let layers = ModuleLayers::parse_declaration(&read_source(&lib)?).ok_or_else(|| {
        Failed(format!("{}: no line that ends '{HEADING}', with a block after it", lib.display()))
    })?;
    for (module, SourceFile { path, used, .. }) in CrateSources::read(sources)?.0 {
        let Some(user) = module.first().filter(|_| !is_in_model_module(&module)) else { continue };
        let used: BTreeSet<&String> = used.iter().filter_map(|path| path.first()).collect();
        let refused = used.into_iter().filter_map(|used| layers.check_use(user, used).err());
        found.extend(refused.map(|why| format!("{}: {why}", sources.join(&path).display())));
    }
    Ok(())
}

/// The height of each module: the lines of the declaration, counted from the top.
#[derive(Debug)]
struct ModuleLayers(BTreeMap<String, usize>);

impl ModuleLayers {
    fn parse_declaration(lib: &str) -> Option<Self> {
        let mut lines = lib.lines().map_while(|line| line.strip_prefix("//!"));
        lines.find(|line| line.contains(HEADING))?;
        lines.find(|line| line.trim() == "```text")?;
        let block = lines.take_while(|line| line.trim() != "```");
        let of_line = |(depth, line): (usize, &str)| {
            line.split_whitespace().map(|module| (module.to_owned(), depth)).collect::<Vec<_>>()
        };
        Some(Self(block.enumerate().flat_map(of_line).collect()))
    }

    fn check_use(&self, user: &str, used: &str) -> Result<(), String> {
        let depth = |module: &str| {
            self.0.get(module).ok_or_else(|| match module.starts_with(char::is_uppercase) {
                true => {
                    format!("'{module}' is a name for users of the crate; name the module that it lies in")
                }
                false => format!("'{module}' has no layer; declare it in lib.rs, after 'in their layers'"),
            })
        };
        let is_allowed = user == used || depth(user)? < depth(used)?;
        is_allowed.then_some(()).ok_or_else(|| {
            format!("'{user}' uses '{used}', which does not lie below it; see the layers in lib.rs")
        })
    }
}

/// Models are shared by tests and fuzz targets.
fn is_in_model_module(module: &[String]) -> bool {
    module.iter().any(|name| name == "model")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! A crate.\n//!\n//! The modules in their layers:\n//!\n//! ```text\n//! high\n//! left  right\n//! low\n//! ```\nmod low;\n";

    #[test]
    fn only_lower_layers_may_be_used() {
        let layers = ModuleLayers::parse_declaration(LIB).unwrap();
        for (user, used) in [("high", "left"), ("high", "low"), ("right", "low"), ("left", "left")] {
            layers.check_use(user, used).unwrap();
        }
        for (user, used) in [("low", "high"), ("low", "left"), ("left", "right")] {
            assert!(layers.check_use(user, used).unwrap_err().contains("does not lie below"));
        }
        assert!(layers.check_use("high", "Name").unwrap_err().contains("for users"));
        assert!(layers.check_use("high", "unknown").unwrap_err().contains("declare it"));
        assert!(ModuleLayers::parse_declaration("//! A crate without.\n").is_none());
    }
}
