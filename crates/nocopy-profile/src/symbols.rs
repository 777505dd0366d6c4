//! The kernel's functions by their addresses (`/proc/kallsyms`).

use std::fs;

use super::Error;

const PATH: &str = "/proc/kallsyms";

/// Functions in the order of their addresses.
#[derive(Debug)]
pub(crate) struct KernelSymbols(Vec<(u64, String)>);

impl KernelSymbols {
    /// Symbols of the running kernel, its modules and its BPF programs.
    /// Errors: [`Error::SymbolsHidden`] if the kernel shows no addresses to this process.
    pub(crate) fn read() -> Result<Self, Error> {
        let text = fs::read_to_string(PATH).map_err(|source| Error::Proc { path: PATH.into(), source })?;
        Self::parse(&text).ok_or(Error::SymbolsHidden)
    }

    /// `None` if the text has no addresses.
    fn parse(text: &str) -> Option<Self> {
        let symbol = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            is_code.then_some(())?;
            Some((address, without_compiler_suffix(words.next()?).to_owned()))
        };
        let mut symbols: Vec<_> = text.lines().filter_map(symbol).collect();
        symbols.sort();
        (!symbols.is_empty()).then_some(Self(symbols))
    }

    /// The function that contains an address, or the address itself.
    fn function_at(&self, address: u64) -> String {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        match after.checked_sub(1) {
            Some(index) => self.0[index].1.clone(),
            None => format!("{address:#x}"),
        }
    }

    /// The functions of a stack, innermost first.
    pub(crate) fn stack_functions(&self, addresses: impl IntoIterator<Item = u64>) -> Vec<String> {
        let mut callee = None;
        let mut name = |address: u64| {
            // The return address may be in the next function, if the called function never returns.
            let inside = address - u64::from(callee.is_some());
            callee = Some(address);
            self.function_at(inside)
        };
        addresses.into_iter().map(&mut name).collect()
    }
}

/// The name as in the source: the compiler adds suffixes after a dot.
fn without_compiler_suffix(name: &str) -> &str {
    match name.find('.') {
        Some(end) if end > 0 => &name[..end],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ffffffff81000010 T first\nffffffff81000020 t second.isra.0\nffffffff81000030 D data\n\
                         ffffffff81000040 t third\t[module]\n";

    #[test]
    fn an_address_is_of_the_function_before_it() {
        let symbols = KernelSymbols::parse(TABLE).unwrap();
        let base = 0xffff_ffff_8100_0000;
        let names = |offsets: &[u64]| symbols.stack_functions(offsets.iter().map(|offset| base + offset));
        assert_eq!(names(&[0x10, 0x30, 0x41]), ["first", "second", "third"]);
        assert_eq!(names(&[0x40, 0x40]), ["third", "second"], "a caller's is where it goes on");
        assert_eq!(names(&[0x8]), ["0xffffffff81000008"]);
    }

    #[test]
    fn hidden_addresses_are_detected() {
        assert!(KernelSymbols::parse("0000000000000000 T first\n0000000000000000 t second\n").is_none());
    }
}
