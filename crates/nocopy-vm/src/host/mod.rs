//! On the host: prepare what is missing, boot the machines, report.

mod arm64;
mod boot;
mod cache;
mod emulator;
mod ending;
mod error;
mod kernel;
mod kvm;
mod lab;
mod machine;
mod packages;
mod ramdisk;
mod report;
mod rows;
mod tools;
mod wire;

use std::fs::{self, File};

use boot::MachinePlan;
use cache::LockedCache;
pub(crate) use error::Error;
use kernel::KernelTree;
use lab::{LabContext, ProcessorKind};
use nocopy_lab::witness::StallWitness;
use report::LabReport;
use tools::HostTools;

use crate::arguments::RunArguments;
use crate::registry;
use crate::topology::{Architecture, Kernel};

pub(crate) fn prepare() -> Result<bool, Error> {
    let cache = LockedCache::lock()?;
    let tools = HostTools::prepare(&cache)?;
    println!("{}", tools.qemu_version);
    for kernel in [Kernel::Newest, Kernel::Stable, Kernel::Older] {
        println!("Linux {} ({kernel})", KernelTree::prepare(&cache, kernel)?.version);
    }
    let newest = KernelTree::prepare(&cache, Kernel::Newest)?;
    println!("{}", ProcessorKind::detect(&cache, &tools, &newest)?);
    println!("in {}", cache.directory().display());
    Ok(true)
}

#[expect(clippy::unnecessary_wraps, reason = "like the other commands")]
pub(crate) fn list() -> Result<bool, Error> {
    report::print_tests();
    Ok(true)
}

/// Runs the tests asked for; true when every one passed.
pub(crate) fn run(arguments: &RunArguments) -> Result<bool, Error> {
    if let Some(name) = arguments.only.iter().find(|name| registry::find_test(name).is_none()) {
        return Err(Error::NoTest { name: name.clone() });
    }
    // Before anything takes time: a file that cannot be written is known at once.
    let json = arguments.json.as_ref().map(|path| {
        File::create(path)
            .map_err(|source| Error::File { path: path.clone(), source })
            .map(|file| (path, file))
    });
    let json = json.transpose()?;
    let random = arguments.random.with_resolved_seed().map_err(Error::Seed)?;
    let boots = MachinePlan::for_arguments(arguments);
    if boots.is_empty() {
        return Err(Error::NoRow);
    }
    let cache = LockedCache::lock()?;
    let architecture = arguments.kernel.map_or(Architecture::Amd64, Kernel::architecture);
    let (tools, processors) = match architecture {
        Architecture::Amd64 => prepare_host_tools(&cache)?,
        Architecture::Arm64 => prepare_arm64_tools(&cache, arguments)?,
    };
    let boots = boots.into_iter().map(|boot| Ok((KernelTree::prepare(&cache, boot.kernel)?, boot)));
    let boots = boots.collect::<Result<Vec<_>, Error>>()?;
    eprintln!("vm: processors by {processors}; --seed {}", random.seed());
    let cache = cache.into_unlocked_path();
    let witness = StallWitness::start().map_err(Error::Witness)?;
    let (cache, tools) = (&*cache, &tools);
    let lab = LabContext { cache, tools, processors: &processors, random, witness: &witness };
    let report = LabReport::new(&lab, machine::run_all(&lab, boots));
    report.print();
    if let Some((path, file)) = json {
        report.write(file).map_err(|source| Error::File { path: path.clone(), source })?;
    }
    Ok(report.passed())
}

fn prepare_host_tools(cache: &LockedCache) -> Result<(HostTools, ProcessorKind), Error> {
    let tools = HostTools::prepare(cache)?;
    let processors = ProcessorKind::detect(cache, &tools, &KernelTree::prepare(cache, Kernel::Newest)?)?;
    Ok((tools, processors))
}

fn prepare_arm64_tools(
    cache: &LockedCache,
    arguments: &RunArguments,
) -> Result<(HostTools, ProcessorKind), Error> {
    let path = arguments.built.as_ref().ok_or(Error::NothingBuilt)?;
    let text = fs::read(path).map_err(Error::for_file(path))?;
    let built = serde_json::from_slice(&text).map_err(|error| Error::for_file(path)(error.into()))?;
    tools::install_for_arm64()?;
    let tools = HostTools::prepare_for_arm64(cache, &KernelTree::prepare(cache, Kernel::Arm64)?, &built)?;
    Ok((tools, ProcessorKind::Emulated("they are arm64".into())))
}
