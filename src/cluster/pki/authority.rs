//! Authorities: made once for a cluster, read from their Secret, and what they sign. Where they are kept is no matter
//! here.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use time::OffsetDateTime;

use super::check::{Fault, Span, keys_match};
use super::{BACKDATED, Certificate, Order, Pair, Usage};

/// How long an authority lasts: ten years. Nothing that it signed lasts longer.
const LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// The length of a serial number, in bytes: RFC 5280 allows 20; 16 random ones never meet again.
const SERIAL_BYTES: usize = 16;

/// Why nothing was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// It can't be made of what was ordered.
    #[error("failed to make a certificate")]
    Make(#[from] rcgen::Error),
    /// There is no randomness.
    #[error("failed to get random bytes for a serial number")]
    Random,
    /// A time that no certificate can carry.
    #[error("failed to write the time {0} into a certificate")]
    Time(Timestamp),
}

/// An authority.
#[derive(Debug)]
pub struct Authority {
    trusted: String,
    own: Pair,
    until: Timestamp,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, called `subject`.
    pub fn make(subject: &str, now: Timestamp) -> Result<Self, IssueError> {
        let until = now + LIFETIME;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (date(now - BACKDATED)?, date(until)?);
        params.serial_number = Some(serial()?);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let own = Pair { certificate: certificate.clone(), key: key.serialize_pem() };
        Ok(Self { trusted: certificate, own, until, issuer: Issuer::new(params, key) })
    }

    /// One that was made before: the certificates that are trusted (its own, and while it is being exchanged another), and
    /// the one that signs.
    pub fn read(trusted: &str, own: Pair) -> Result<Self, Fault> {
        let bundle = Certificate::read(trusted).map_err(|_| Fault::NoCertificate("ca.crt"))?;
        let certificates = Certificate::read(&own.certificate).map_err(|_| Fault::NoCertificate("tls.crt"))?;
        let Some(certificate) = certificates.first() else { return Err(Fault::NoCertificate("tls.crt")) };
        if !certificate.authority {
            return Err(Fault::NoAuthority);
        }
        if !bundle.iter().any(|trusted| trusted.der == certificate.der) {
            return Err(Fault::NotInBundle);
        }
        keys_match(&certificates, &own.key)?;
        let key = KeyPair::from_pem(&own.key).map_err(|_| Fault::NoKey)?;
        let issuer = Issuer::from_ca_cert_der(&certificate.der, key).map_err(|_| Fault::NoCertificate("tls.crt"))?;
        Ok(Self { trusted: trusted.to_owned(), until: certificate.until, own, issuer })
    }

    /// The certificates by which what it signed is trusted, as PEM.
    pub fn trusted(&self) -> &str {
        &self.trusted
    }

    /// Its own certificate and key.
    pub fn own(&self) -> &Pair {
        &self.own
    }

    /// Until when it lasts.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// When something that it signs now for so long can be used, in whole seconds, as X.509 knows no others.
    pub fn span(&self, lifetime: SignedDuration, now: Timestamp) -> Span {
        let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        Span { until: whole(self.until.min(now + lifetime)), from: whole(now - BACKDATED) }
    }

    /// Signs what was ordered. A key that is given is used again: while the files of a Secret are exchanged under etcd,
    /// which reads certificate and key one after the other, the two then always fit.
    pub fn issue(&self, order: &Order, key: Option<&str>, now: Timestamp) -> Result<Pair, IssueError> {
        let Order { subject, names, usages, lifetime } = order;
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name = name(subject);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.iter().copied().map(purpose).collect();
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        let span = self.span(*lifetime, now);
        (params.not_before, params.not_after) = (date(span.from)?, date(span.until)?);
        let key = match key.and_then(|key| KeyPair::from_pem(key).ok()) {
            Some(key) => key,
            None => KeyPair::generate()?,
        };
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

fn name(subject: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, subject);
    name
}

fn purpose(usage: Usage) -> ExtendedKeyUsagePurpose {
    match usage {
        Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
    }
}

fn date(time: Timestamp) -> Result<OffsetDateTime, IssueError> {
    OffsetDateTime::from_unix_timestamp(time.as_second()).map_err(|_| IssueError::Time(time))
}

fn serial() -> Result<SerialNumber, IssueError> {
    let mut bytes = [0; SERIAL_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| IssueError::Random)?;
    // A serial number is positive, and a leading zero would be cut off.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, authority, order};
    use super::*;

    #[test]
    fn an_authority_is_read_back_from_what_is_kept_of_it() {
        let made = authority();
        let read = Authority::read(made.trusted(), made.own().clone()).unwrap();
        assert_eq!((read.trusted(), read.own(), read.until()), (made.trusted(), made.own(), made.until()));
        let pair = read.issue(&order(), None, NOW).unwrap();
        let demand = super::super::Demand { names: &order().names, usages: &[Usage::Server] };
        super::super::check(&pair, made.trusted(), "ca.crt", &demand, NOW).unwrap();
    }

    #[test]
    fn a_damaged_authority_is_refused_with_what_is_wrong() {
        let (one, other) = (authority(), authority());
        let read = |trusted: &str, certificate: &str, key: &str| {
            let own = Pair { certificate: certificate.into(), key: key.into() };
            Authority::read(trusted, own).unwrap_err()
        };
        let Pair { certificate, key } = one.own();
        assert_eq!(read("", certificate, key), Fault::NoCertificate("ca.crt"));
        assert_eq!(read(one.trusted(), "", key), Fault::NoCertificate("tls.crt"));
        assert_eq!(read(one.trusted(), certificate, ""), Fault::NoKey);
        assert_eq!(read(one.trusted(), certificate, &other.own().key), Fault::KeyMismatch);
        assert_eq!(read(other.trusted(), certificate, key), Fault::NotInBundle);
        let leaf = one.issue(&order(), None, NOW).unwrap();
        assert_eq!(read(one.trusted(), &leaf.certificate, &leaf.key), Fault::NoAuthority);
    }

    #[test]
    fn a_bundle_may_trust_a_second_authority() {
        let (one, other) = (authority(), authority());
        let bundle = format!("{}{}", other.trusted(), one.trusted());
        let read = Authority::read(&bundle, one.own().clone()).unwrap();
        assert_eq!(read.trusted(), bundle);
    }

    #[test]
    fn nothing_lasts_longer_than_its_authority_and_all_begins_before_now() {
        let authority = authority();
        let long = Order { lifetime: LIFETIME * 2, ..order() };
        let pair = authority.issue(&long, None, NOW).unwrap();
        let leaf = &Certificate::read(&pair.certificate).unwrap()[0];
        assert_eq!(leaf.until.as_second(), authority.until().as_second());
        assert_eq!(leaf.from.as_second(), (NOW - BACKDATED).as_second());
    }

    #[test]
    fn a_renewal_keeps_the_key_and_has_a_serial_number_of_its_own() {
        let authority = authority();
        let first = authority.issue(&order(), None, NOW).unwrap();
        let second = authority.issue(&order(), Some(&first.key), NOW).unwrap();
        assert_eq!(first.key, second.key);
        assert_ne!(first.certificate, second.certificate);
        let fresh = authority.issue(&order(), Some("no key"), NOW).unwrap();
        assert_ne!(first.key, fresh.key, "a key that can't be read is made anew");
    }
}
