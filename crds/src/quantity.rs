//! A Kubernetes quantity ("8Gi") as text, and its value in bytes. It knows no fields and no limits of ours.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An amount in Kubernetes' notation, kept as the user wrote it: `8Gi`, `512Mi`, `1.5G`, `2e9`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(String);

/// Why a quantity has no value in bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantityError {
    /// Not a number followed by a known suffix.
    #[error("failed to read {0:?} as a quantity: write a number with a suffix such as Mi, Gi, M or G")]
    Malformed(String),
    /// A value below zero, or above what fits in 63 bits.
    #[error("failed to read {0:?} as a quantity: it is out of range")]
    OutOfRange(String),
}

/// The longest quantity that the schema accepts. Twice what any sensible amount needs; it bounds the cost of the rules.
const MAX_LENGTH: u32 = 32;

impl Quantity {
    /// A quantity from its text, which is checked only when its value is asked for.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value in bytes, rounded up as Kubernetes does.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        let malformed = || QuantityError::Malformed(self.0.clone());
        let out_of_range = || QuantityError::OutOfRange(self.0.clone());
        let text = self.0.strip_prefix('+').unwrap_or(&self.0);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(malformed());
        }
        let scale = Scale::parse(suffix).ok_or_else(malformed)?;
        let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| out_of_range())?;
        let places = u32::try_from(fraction.len()).map_err(|_| out_of_range())?;
        let value = scale.apply(digits, places).ok_or_else(out_of_range)?;
        u64::try_from(value).ok().filter(|v| i64::try_from(*v).is_ok()).ok_or_else(out_of_range)
    }
}

/// What a suffix multiplies by.
enum Scale {
    /// 2 to this power: Ki, Mi, ...
    Binary(u32),
    /// 10 to this power: k, M, ..., m, u, n, or an exponent.
    Decimal(i32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            exponent => Self::Decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    /// `digits` with `places` of them behind the point, times this scale, rounded up.
    fn apply(&self, digits: u128, places: u32) -> Option<u128> {
        let (factor, divisor_power) = match *self {
            Self::Binary(power) => (1_u128.checked_shl(power)?, places),
            Self::Decimal(power) => {
                let power = i64::from(power) - i64::from(places);
                let tens = u32::try_from(power.unsigned_abs()).ok()?;
                if power >= 0 { (10_u128.checked_pow(tens)?, 0) } else { (1, tens) }
            }
        };
        // A divisor beyond 128 bits leaves less than one unit, which is rounded up to one.
        match 10_u128.checked_pow(divisor_power) {
            Some(divisor) => Some(digits.checked_mul(factor)?.div_ceil(divisor)),
            None => Some(u128::from(digits > 0)),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.0)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_LENGTH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_amounts_have_their_values() {
        for (text, bytes) in [
            ("8Gi", 8 << 30),
            ("512Mi", 512 << 20),
            ("1.5Gi", 3 << 29),
            ("100M", 100_000_000),
            ("2e9", 2_000_000_000),
            ("2E3", 2_000),
            ("1E", 1_000_000_000_000_000_000),
            ("+7", 7),
            ("0", 0),
            ("1m", 1),
            ("1500m", 2),
            (".5Ki", 512),
            ("1e-60", 1),
        ] {
            assert_eq!(Quantity::new(text).bytes(), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "Gi", "8 Gi", "8GiB", "8gi", "1.2.3", "-1", ".", "e3", "1e", "1ee3", "0x10"] {
            assert!(matches!(Quantity::new(text).bytes(), Err(QuantityError::Malformed(_))), "{text}");
        }
        for text in ["8Ei", "1e99", "1e999999999", "1e2147483647", "99999999999999999999999999999999999999999"] {
            assert!(matches!(Quantity::new(text).bytes(), Err(QuantityError::OutOfRange(_))), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[-+.0-9eEkKMGTPimun]{0,40}|.{0,12}") {
            let _ = Quantity::new(text).bytes();
        }

        #[test]
        fn whole_mebibytes_are_exact(n in 0_u64..1 << 40) {
            prop_assert_eq!(Quantity::new(format!("{n}Mi")).bytes(), Ok(n << 20));
        }
    }
}
