//! On the host: prepare what is missing, boot the machines, report.

mod boot;
mod cache;
mod error;
mod kernel;
mod kvm;
mod machine;
mod packages;
mod report;
mod rows;
mod tools;
mod wire;

use std::fs::File;

use boot::Boot;
use cache::Cache;
pub(crate) use error::Error;
use kernel::KernelTree;
use kvm::Processors;
use machine::Lab;
use nocopy_lab::witness::Witness;
use report::Report;
use tools::Tools;

use crate::arguments::RunArguments;
use crate::registry::{self, Kernel};

/// Fetches and installs what the lab needs.
pub(crate) fn prepare() -> Result<bool, Error> {
    let cache = Cache::locked()?;
    let tools = Tools::prepare(&cache)?;
    println!("{}", tools.qemu_version);
    for kernel in [Kernel::Newest, Kernel::Older] {
        println!("Linux {} ({kernel})", KernelTree::prepare(&cache, kernel)?.version);
    }
    let newest = KernelTree::prepare(&cache, Kernel::Newest)?;
    println!("{}", Processors::find(&cache, &tools, &newest)?);
    println!("in {}", cache.directory().display());
    Ok(true)
}

/// Lists the tests.
#[expect(clippy::unnecessary_wraps, reason = "like the other commands")]
pub(crate) fn list() -> Result<bool, Error> {
    report::print_tests();
    Ok(true)
}

/// Runs the tests asked for; true when every one passed.
pub(crate) fn run(arguments: &RunArguments) -> Result<bool, Error> {
    if let Some(name) = arguments.only.iter().find(|name| registry::find(name).is_none()) {
        return Err(Error::NoTest { name: name.clone() });
    }
    // Before anything takes time: a file that cannot be written is known at once.
    let json = arguments.json.as_ref().map(|path| {
        File::create(path)
            .map_err(|source| Error::File { path: path.clone(), source })
            .map(|file| (path, file))
    });
    let json = json.transpose()?;
    let random = arguments.random.settled().map_err(Error::Seed)?;
    let cache = Cache::locked()?;
    let tools = Tools::prepare(&cache)?;
    let boots =
        Boot::all(arguments).into_iter().map(|boot| Ok((KernelTree::prepare(&cache, boot.kernel)?, boot)));
    let boots = boots.collect::<Result<Vec<_>, Error>>()?;
    let processors = Processors::find(&cache, &tools, &KernelTree::prepare(&cache, Kernel::Newest)?)?;
    eprintln!("vm: processors by {processors}; --seed {}", random.seed());
    let cache = cache.unlocked();
    let witness = Witness::start().map_err(Error::Witness)?;
    let (cache, tools) = (&*cache, &tools);
    let lab = Lab { cache, tools, processors: &processors, random, witness: &witness };
    let report = Report::new(&lab, machine::run_all(&lab, boots));
    report.print();
    if let Some((path, file)) = json {
        report.write(file).map_err(|source| Error::File { path: path.clone(), source })?;
    }
    Ok(report.passed())
}
