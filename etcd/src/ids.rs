//! The two ids etcd gives out. Only numbers: what they belong to is others' business.

use std::{fmt, num::ParseIntError, str::FromStr};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        /// In hexadecimal, as etcd writes it in logs, metrics and headers.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        /// From hexadecimal, as etcd writes it in logs, metrics and headers.
        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                u64::from_str_radix(text, 16).map(Self)
            }
        }
    };
}

id!(
    /// The id etcd gave a member. A removed id never comes back.
    MemberId
);
id!(
    /// The id of a cluster, made at its seed from the token and the seed's peer URL.
    ClusterId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_as_etcd_writes_it() {
        let id = MemberId(0x8e9e_05c5_2164_694d);
        assert_eq!(id.to_string(), "8e9e05c52164694d");
        assert_eq!("8e9e05c52164694d".parse::<MemberId>().unwrap(), id);
        assert_eq!("cdf818194e3a8c32".parse::<ClusterId>().unwrap().to_string(), "cdf818194e3a8c32");
        assert!("".parse::<MemberId>().is_err());
        assert!("member".parse::<MemberId>().is_err());
    }
}
