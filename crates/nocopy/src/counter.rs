//! Groups of counters under their kernel names.

use std::borrow::Cow;

/// One counter: monotonic as long as what counts lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Its name: the kernel's, the driver's, or this library's field.
    pub name: Cow<'static, str>,
    /// What it counts; empty where only its driver knows.
    pub meaning: &'static str,
    /// How many.
    pub value: u64,
}

impl Counter {
    /// What was counted since it stood at `earlier`. One that went back began anew, so all of it is new.
    pub(crate) fn since(value: u64, earlier: u64) -> u64 {
        value.checked_sub(earlier).unwrap_or(value)
    }
}

/// Makes a struct of counters whose documentation is also what the counters say of themselves.
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

            /// What was counted since `earlier`; a counter that went back began anew, so all of it is new.
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
