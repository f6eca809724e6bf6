//! Whether a certificate can be used for what it is meant for: chain, names, uses, dates, and its key. Every fault is
//! named. It checks what etcd checks at a handshake, and no more.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::aws_lc_rs;
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::{Certificate, Pair, Usage};

/// What a certificate has to be good for.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Each of these names and addresses.
    pub names: &'a [String],
    /// Each of these uses.
    pub usages: &'a [Usage],
}

/// From when until when something can be used. The one that ends first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The end.
    pub until: Timestamp,
    /// The begin.
    pub from: Timestamp,
}

impl Span {
    /// Whether less than a quarter of it is left: by then it should have been exchanged.
    pub fn is_nearly_over(self, now: Timestamp) -> bool {
        let Self { until, from } = self;
        until.duration_since(now) < until.duration_since(from) / 4
    }
}

/// What is wrong with a Secret or the certificate in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Fault {
    /// The Secret is not there.
    #[error("it does not exist")]
    SecretMissing,
    /// Something in it is not there.
    #[error("it has no {0}")]
    KeyMissing(&'static str),
    /// What should be certificates is none.
    #[error("{0} holds no certificate in PEM")]
    NoCertificate(&'static str),
    /// What should be a key is none.
    #[error("the private key is none that can be read")]
    NoKey,
    /// The key is another's.
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
    /// Its time is over.
    #[error("the certificate ran out on {0}")]
    Expired(Timestamp),
    /// Its time has not come.
    #[error("the certificate is not valid before {0}")]
    NotYetValid(Timestamp),
    /// Nobody who is trusted signed it.
    #[error("no certificate in {0} has signed it")]
    UnknownAuthority(String),
    /// Who signed it is no authority any more.
    #[error("the authority that signed it ran out on {0}")]
    AuthorityExpired(Timestamp),
    /// A certificate between it and its authority has run out.
    #[error("a certificate between it and its authority can't be used now")]
    ChainExpired,
    /// It is not meant for this.
    #[error("its extended key usages lack {0}")]
    Usage(&'static str),
    /// It does not carry a name.
    #[error("it does not name {0}")]
    Name(String),
    /// It is an authority's, which nobody may show.
    #[error("it is an authority's own certificate; let the authority sign another")]
    IsAuthority,
    /// It is not an authority's, and should be.
    #[error("tls.crt is not the certificate of an authority")]
    NoAuthority,
    /// What it signs would not be trusted.
    #[error("ca.crt does not hold the certificate that is in tls.crt")]
    NotInBundle,
    /// It is another authority than the one that members know: what it signs, they would refuse.
    #[error("it holds another authority than the one that the Secrets of members trust")]
    Strange,
    /// What is trusted is not what it should be.
    #[error("{0} is not what the authority's Secret says")]
    OtherTrust(&'static str),
    /// More than anybody needs: each is tried with each, in every round.
    #[error("{what} holds {found} certificates, and at most {most} are looked at; leave out those that are not needed")]
    TooMany {
        /// Where.
        what: String,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// Anything else that makes it useless, in the verifier's words.
    #[error("it can't be verified: {0}")]
    Other(String),
}

/// The most certificates that are shown: the one itself, and those between.
const MOST_SHOWN: usize = 16;
/// The most certificates that are trusted: more than browsers know authorities.
const MOST_TRUSTED: usize = 256;

/// Checks a certificate against those that are trusted (`trust`, which people know as `trust_name`). Returns when it can be
/// used: until the first time at which it, something between, or its authority runs out.
pub fn check(
    pair: &Pair,
    trust: &str,
    trust_name: &str,
    demand: &Demand<'_>,
    now: Timestamp,
) -> Result<Span, Vec<Fault>> {
    let chain = Certificate::read(&pair.certificate).map_err(|_| vec![Fault::NoCertificate("the certificate")])?;
    let anchors = Certificate::read(trust).map_err(|_| vec![Fault::UnknownAuthority(trust_name.to_owned())])?;
    at_most(MOST_SHOWN, &chain, "the certificate")?;
    at_most(MOST_TRUSTED, &anchors, trust_name)?;
    let [leaf, between @ ..] = chain.as_slice() else { return Err(vec![Fault::NoCertificate("the certificate")]) };
    let mut faults = Vec::new();
    faults.extend(keys_match(&chain, &pair.key).err());
    if now > leaf.until {
        faults.push(Fault::Expired(leaf.until));
    } else if now < leaf.from {
        faults.push(Fault::NotYetValid(leaf.from));
    }
    // Asked at a time when the leaf itself is valid, so that an expired one hides no other fault.
    let chain = Chain { leaf, between, at: now.clamp(leaf.from, leaf.until.max(leaf.from)) };
    let mut until = leaf.until;
    for usage in demand.usages {
        match chain.authority(&anchors, *usage) {
            Ok(authority) if authority < now => faults.push(Fault::AuthorityExpired(authority)),
            Ok(authority) => until = until.min(authority).min(chain.leads_until(&anchors, *usage)),
            Err(error) => faults.push(fault_of(&error, *usage, trust_name)),
        }
    }
    faults.extend(demand.names.iter().filter(|name| !chain.names(name)).map(|name| Fault::Name(name.clone())));
    faults.dedup();
    if faults.is_empty() { Ok(Span { until, from: chain.leaf.from }) } else { Err(faults) }
}

fn at_most(most: usize, certificates: &[Certificate], what: &str) -> Result<(), Vec<Fault>> {
    match certificates.len() {
        found if found > most => Err(vec![Fault::TooMany { what: what.to_owned(), found, most }]),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy)]
struct Chain<'a> {
    leaf: &'a Certificate,
    between: &'a [Certificate],
    at: Timestamp,
}

impl Chain<'_> {
    /// Until when the authority lasts that vouches for this use; of several, the one that lasts longest.
    fn authority(&self, anchors: &[Certificate], usage: Usage) -> Result<Timestamp, webpki::Error> {
        let alone = |anchor: &&Certificate| self.is_vouched_for(std::slice::from_ref(*anchor), usage).is_ok();
        match anchors.iter().filter(alone).map(|anchor| anchor.until).max() {
            Some(until) => Ok(until),
            None => self.is_vouched_for(anchors, usage).and(Err(webpki::Error::UnknownIssuer)),
        }
    }

    /// Until when those between lead to an authority: the first end of one of them that leaves no way. Who is on no way does not
    /// count, for nobody asks for it.
    fn leads_until(&self, anchors: &[Certificate], usage: Usage) -> Timestamp {
        let ends = self.between.iter().map(|one| one.until).chain([self.leaf.until]);
        let after = |end: &Timestamp| end.checked_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
        let ceases = |end: &Timestamp| Self { at: after(end), ..*self }.is_vouched_for(anchors, usage).is_err();
        ends.filter(|end| (self.at..=self.leaf.until).contains(end)).filter(ceases).min().unwrap_or(self.leaf.until)
    }

    fn is_vouched_for(&self, anchors: &[Certificate], usage: Usage) -> Result<(), webpki::Error> {
        let anchors: Vec<_> = anchors.iter().filter_map(|one| anchor_from_trusted_cert(&one.der).ok()).collect();
        let between: Vec<CertificateDer<'_>> = self.between.iter().map(|one| one.der.clone()).collect();
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
        let usage = match usage {
            Usage::Server => KeyUsage::server_auth(),
            Usage::Client => KeyUsage::client_auth(),
        };
        let seconds = Duration::from_secs(u64::try_from(self.at.as_second()).unwrap_or(0));
        let at = UnixTime::since_unix_epoch(seconds);
        let leaf = EndEntityCert::try_from(&self.leaf.der)?;
        leaf.verify_for_usage(algorithms, &anchors, &between, at, usage, None, None).map(drop)
    }

    /// Whether it carries this name; of a wildcard, whether it covers one that nobody would ask for by itself.
    fn names(&self, name: &str) -> bool {
        let covered = name.strip_prefix("*.").map(|domain| format!("any-name-below.{domain}"));
        let Ok(name) = ServerName::try_from(covered.as_deref().unwrap_or(name)) else { return false };
        EndEntityCert::try_from(&self.leaf.der).is_ok_and(|leaf| leaf.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

fn fault_of(error: &webpki::Error, usage: Usage, trust_name: &str) -> Fault {
    match error {
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => Fault::Usage(match usage {
            Usage::Server => "server auth",
            Usage::Client => "client auth",
        }),
        webpki::Error::CaUsedAsEndEntity => Fault::IsAuthority,
        webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => Fault::ChainExpired,
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            Fault::UnknownAuthority(trust_name.to_owned())
        }
        other => Fault::Other(other.to_string()),
    }
}

/// Demands that a key is the first certificate's.
pub(super) fn keys_match(chain: &[Certificate], key: &str) -> Result<(), Fault> {
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| Fault::NoKey)?;
    let chain = chain.iter().map(|one| one.der.clone()).collect();
    match CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()) {
        Ok(_) => Ok(()),
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(Fault::KeyMismatch),
        Err(_) => Err(Fault::NoKey),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{LATER, NOW, Root, authority, order};
    use super::super::{Authority, Order};
    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);
    const BOTH: [Usage; 2] = [Usage::Server, Usage::Client];

    fn at(pair: &Pair, trust: &str, names: &[&str], now: Timestamp) -> Result<Timestamp, Vec<Fault>> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        check(pair, trust, "ca.crt", &Demand { names: &names, usages: &BOTH }, now).map(|span| span.until)
    }

    #[test]
    fn what_is_in_order_is_good_until_it_runs_out() {
        let authority = authority();
        let pair = authority.issue(&order(), None, NOW).unwrap();
        assert_eq!(at(&pair, authority.trusted(), &["db-0.db.ns.svc", "127.0.0.1"], NOW), Ok(NOW + order().lifetime));
        let wild = Order { names: vec!["*.db.ns.svc".into()], ..order() };
        let wild = authority.issue(&wild, None, NOW).unwrap();
        at(&wild, authority.trusted(), &["db-7.db.ns.svc"], NOW).unwrap();
    }

    #[test]
    fn each_planted_fault_is_refused_by_its_name() {
        let (own, foreign) = (authority(), authority());
        let good = own.issue(&order(), None, NOW).unwrap();
        let other = own.issue(&order(), None, NOW).unwrap();
        let server_only = own.issue(&Order { usages: &[Usage::Server], ..order() }, None, NOW).unwrap();
        let client_only = own.issue(&Order { usages: &[Usage::Client], ..order() }, None, NOW).unwrap();
        let with = |certificate: &str, key: &str| Pair { certificate: certificate.into(), key: key.into() };
        let expired = NOW + order().lifetime;
        let begins = NOW - super::super::BACKDATED;
        let name = ["db-0.db.ns.svc"];
        let cases = [
            (
                "no certificate",
                at(&with("", &good.key), own.trusted(), &name, NOW),
                Fault::NoCertificate("the certificate"),
            ),
            ("no key", at(&with(&good.certificate, "x"), own.trusted(), &name, NOW), Fault::NoKey),
            ("another key", at(&with(&good.certificate, &other.key), own.trusted(), &name, NOW), Fault::KeyMismatch),
            ("another authority", at(&good, foreign.trusted(), &name, NOW), Fault::UnknownAuthority("ca.crt".into())),
            ("no authority", at(&good, "", &name, NOW), Fault::UnknownAuthority("ca.crt".into())),
            ("expired", at(&good, own.trusted(), &name, expired + HOUR), Fault::Expired(expired)),
            ("from the future", at(&good, own.trusted(), &name, begins - HOUR), Fault::NotYetValid(begins)),
            ("another name", at(&good, own.trusted(), &["db-1.db.ns.svc"], NOW), Fault::Name("db-1.db.ns.svc".into())),
            ("another address", at(&good, own.trusted(), &["10.0.0.1"], NOW), Fault::Name("10.0.0.1".into())),
            ("no client", at(&server_only, own.trusted(), &name, NOW), Fault::Usage("client auth")),
            ("no server", at(&client_only, own.trusted(), &name, NOW), Fault::Usage("server auth")),
            ("an authority's", at(own.own(), own.trusted(), &[], NOW), Fault::IsAuthority),
        ];
        for (what, found, fault) in cases {
            assert_eq!(found, Err(vec![fault]), "{what}");
        }
    }

    #[test]
    fn an_expired_certificate_hides_no_other_fault() {
        let (own, foreign) = (authority(), authority());
        let pair = own.issue(&order(), None, NOW).unwrap();
        let faults = at(&pair, foreign.trusted(), &["other"], LATER).unwrap_err();
        assert_eq!(
            faults,
            [
                Fault::Expired(NOW + order().lifetime),
                Fault::UnknownAuthority("ca.crt".into()),
                Fault::Name("other".into())
            ]
        );
    }

    #[test]
    fn an_authority_that_ran_out_is_named_and_one_of_two_suffices() {
        let (old, new) = (Authority::make("old", NOW).unwrap(), Authority::make("new", NOW).unwrap());
        let bundle = format!("{}{}", old.trusted(), new.trusted());
        for authority in [&old, &new] {
            let pair = authority.issue(&order(), None, NOW).unwrap();
            assert!(at(&pair, &bundle, &["db-0.db.ns.svc"], NOW).is_ok());
        }
        let long = Order { lifetime: SignedDuration::from_hours(24 * 366 * 20), ..order() };
        let pair = old.issue(&long, None, NOW).unwrap();
        let after = old.until() + HOUR;
        let faults = at(&pair, &bundle, &["db-0.db.ns.svc"], after).unwrap_err();
        assert!(faults.contains(&Fault::AuthorityExpired(Timestamp::from_second(old.until().as_second()).unwrap())));
    }

    #[test]
    fn an_authority_between_has_to_be_shown_too_and_to_be_valid() {
        let root = Root::make();
        let leaf = root.signer().issue(&order(), None, NOW).unwrap();
        let shown = |between: &str| Pair { certificate: format!("{}{between}", leaf.certificate), ..leaf.clone() };
        let judged = |pair: &Pair, now: Timestamp| at(pair, &root.trusted, &["db-0.db.ns.svc"], now);
        assert_eq!(judged(&shown(&root.between(LATER)), NOW), Ok(NOW + order().lifetime));
        let short = shown(&root.between(NOW + HOUR));
        assert_eq!(judged(&short, NOW), Ok(NOW + HOUR), "until the one between runs out");
        let unknown = Fault::UnknownAuthority("ca.crt".into());
        let cases = [
            ("it ran out", judged(&short, NOW + HOUR * 2), Fault::ChainExpired),
            ("it is left out", judged(&leaf, NOW), unknown.clone()),
            ("it is another's", judged(&shown(&Root::make().between(LATER)), NOW), unknown),
        ];
        for (what, found, fault) in cases {
            assert_eq!(found, Err(vec![fault]), "{what}");
        }
    }

    #[test]
    fn an_authority_that_is_shown_and_not_needed_may_have_run_out() {
        let root = Root::make();
        let leaf = root.signer().issue(&order(), None, NOW).unwrap();
        let (current, former) = (root.between(LATER), root.between(NOW - HOUR));
        let stranger = Root::make().between(NOW - HOUR);
        for (what, between) in [
            ("the one before, first", format!("{former}{current}")),
            ("the one before, last", format!("{current}{former}")),
            ("one that has signed nothing", format!("{current}{stranger}")),
        ] {
            let pair = Pair { certificate: format!("{}{between}", leaf.certificate), ..leaf.clone() };
            let found = at(&pair, &root.trusted, &["db-0.db.ns.svc"], NOW);
            assert_eq!(found, Ok(NOW + order().lifetime), "{what}");
        }
    }

    #[test]
    fn a_chain_lasts_until_the_first_time_at_which_nobody_leads_to_an_authority() {
        let root = Root::make();
        let leaf = root.signer().issue(&order(), None, NOW).unwrap();
        let hours = |hours: i64| NOW + SignedDuration::from_hours(hours);
        for (next_from, lasts) in [(2, NOW + order().lifetime), (4, hours(3))] {
            let (first, next) = (root.between(hours(3)), root.between_during(hours(next_from), LATER));
            let pair = Pair { certificate: format!("{}{first}{next}", leaf.certificate), ..leaf.clone() };
            assert_eq!(at(&pair, &root.trusted, &["db-0.db.ns.svc"], NOW), Ok(lasts), "the next from hour {next_from}");
        }
    }

    #[test]
    fn more_certificates_than_anybody_needs_are_not_looked_at() {
        let root = Root::make();
        let leaf = root.signer().issue(&order(), None, NOW).unwrap();
        let (between, name) = (root.between(LATER), ["db-0.db.ns.svc"]);
        let with = |shown: usize| Pair {
            certificate: format!("{}{}", leaf.certificate, between.repeat(shown - 1)),
            ..leaf.clone()
        };
        assert_eq!(at(&with(MOST_SHOWN), &root.trusted, &name, NOW), Ok(NOW + order().lifetime));
        let one_more = at(&with(MOST_SHOWN + 1), &root.trusted, &name, NOW).unwrap_err();
        assert!(matches!(one_more[..], [Fault::TooMany { found: 17, most: MOST_SHOWN, .. }]), "{one_more:?}");
        let trusted = root.trusted.repeat(MOST_TRUSTED + 1);
        let too_many = at(&with(2), &trusted, &name, NOW).unwrap_err();
        assert!(matches!(too_many[..], [Fault::TooMany { most: MOST_TRUSTED, .. }]), "{too_many:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_checked_without_a_panic(certificate in ".{0,60}", key in ".{0,60}", trust in ".{0,60}") {
            let checked = at(&Pair { certificate, key }, &trust, &["x"], NOW);
            prop_assert!(checked.is_err());
        }

        #[test]
        fn any_name_is_asked_for_without_a_panic(name in ".{0,40}") {
            let authority = authority();
            let pair = authority.issue(&order(), None, NOW).unwrap();
            let _ = at(&pair, authority.trusted(), &[&name], NOW);
        }
    }
}
