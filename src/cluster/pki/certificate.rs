//! Certificates and keys as they come, in PEM, and what is read of them. Whether they are good for anything is asked
//! elsewhere.

use std::fmt;

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::parse_x509_certificate;

/// A certificate, with those between it and its authority, and its private key, each as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate first, then the others.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// Keys are not for logs.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// As it goes over the wire.
    pub der: CertificateDer<'static>,
    /// From when on it is valid.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// It is one of an authority.
    pub authority: bool,
}

/// A text that is no certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl Certificate {
    /// All certificates of a PEM text; at least one.
    pub fn read(pem: &str) -> Result<Vec<Self>, Unreadable> {
        let read: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
            .map(|der| der.map_err(|_| Unreadable).and_then(Self::of))
            .collect::<Result<_, _>>()?;
        if read.is_empty() { Err(Unreadable) } else { Ok(read) }
    }

    fn of(der: CertificateDer<'static>) -> Result<Self, Unreadable> {
        let (from, until, authority) = {
            let (_, x509) = parse_x509_certificate(&der).map_err(|_| Unreadable)?;
            let validity = x509.validity();
            (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()), x509.is_ca())
        };
        Ok(Self { der, from, until, authority })
    }
}

/// The nearest that can be told: that a certificate has no end is said by the last second of the year 9999 (RFC 5280, 4.1.2.5),
/// which is a day later.
fn time(seconds: i64) -> Timestamp {
    let (first, last) = (Timestamp::MIN, Timestamp::MAX);
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { first } else { last })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{NOW, Root, authority, order};
    use super::*;

    #[test]
    fn a_certificate_without_an_end_is_read() {
        let root = Root::make();
        // 9999-12-31T23:59:59Z.
        let read = Certificate::read(&root.between_seconds(0, 253_402_300_799)).unwrap();
        assert_eq!(read.first().unwrap().until, Timestamp::MAX);
    }

    #[test]
    fn a_chain_is_read_in_its_order() {
        let authority = authority();
        let pair = authority.issue(&order(), None, NOW).unwrap();
        let chain = Certificate::read(&format!("{}{}", pair.certificate, authority.trusted())).unwrap();
        assert_eq!(chain.iter().map(|one| one.authority).collect::<Vec<_>>(), [false, true]);
        assert!(chain[0].from < NOW && chain[0].until < chain[1].until);
        assert!(!format!("{pair:?}").contains("PRIVATE"), "{pair:?}");
    }

    #[test]
    fn what_is_no_certificate_is_none() {
        for text in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(Certificate::read(text), Err(Unreadable), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_in_a_certificates_place_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Certificate::of(CertificateDer::from(bytes));
        }

        #[test]
        fn a_certificate_with_a_changed_byte_is_read_without_a_panic(at in any::<prop::sample::Index>(), to: u8) {
            let read = Certificate::read(authority().trusted()).unwrap();
            let mut bytes = read[0].der.to_vec();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Certificate::of(CertificateDer::from(bytes));
        }
    }
}
