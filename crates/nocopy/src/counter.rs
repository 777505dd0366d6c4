//! Groups of counters under their kernel names.

use std::borrow::Cow;

/// One counter. It only grows while the counted object exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Its name: the kernel's, the driver's, or a field of this library.
    pub name: Cow<'static, str>,
    /// What is counted; empty if only the driver knows.
    pub meaning: &'static str,
    /// The count.
    pub value: u64,
}

impl Counter {
    /// The growth since `earlier`. A counter that is smaller now was restarted, so its whole value is new.
    pub(crate) fn since(value: u64, earlier: u64) -> u64 {
        value.checked_sub(earlier).unwrap_or(value)
    }
}

/// Makes a struct of counters. The documentation of each field is also the meaning that its [`Counter`] has.
macro_rules! counters {
    ($(#[$about:meta])* $vis:vis struct $group:ident { $($(#[doc = $meaning:literal])+ $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        $vis struct $group {
            $($(#[doc = $meaning])+ $vis $name: u64,)+
        }

        impl $group {
            /// Each counter with its name and meaning.
            $vis fn counters(&self) -> impl Iterator<Item = $crate::counter::Counter> + use<> {
                [$($crate::counter::Counter {
                    name: std::borrow::Cow::Borrowed(stringify!($name)),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    value: self.$name,
                },)+]
                .into_iter()
            }

            /// The increase since `earlier`. If the counter was restarted, its whole value.
            #[must_use]
            #[allow(dead_code, reason = "not all groups need it")]
            $vis fn since(&self, earlier: &Self) -> Self {
                Self { $($name: $crate::counter::Counter::since(self.$name, earlier.$name),)+ }
            }
        }

        impl std::ops::AddAssign for $group {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}
pub(crate) use counters;
