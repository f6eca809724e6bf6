//! Whether the user's own three Secrets can be used, each by itself and with the others. Every fault is told with the
//! Secret that has it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use quorate_crds::TlsSecrets;

use super::secrets::{TLS_CERTIFICATE, TLS_KEY, TLS_TRUSTED, pair, text};
use super::{Certificates, Demand, Fault, Pair, Span, Terms, Usage, check};

/// The user's Secrets, as far as they are there.
#[derive(Clone, Debug, Default)]
pub struct OwnSecrets {
    /// What members show each other.
    pub peer: Option<Secret>,
    /// What members show their clients.
    pub server: Option<Secret>,
    /// What the operator shows the members.
    pub client: Option<Secret>,
}

/// A Secret's name and what is wrong with it.
pub type Faults = Vec<(String, Fault)>;

/// How they are; if they can be used, which of them runs out first. One that has a quarter of its time left should have
/// been exchanged by now.
pub fn judge_own(own: &OwnSecrets, named: &TlsSecrets, terms: &Terms<'_>, now: Timestamp) -> Certificates {
    const BOTH: [Usage; 2] = [Usage::Server, Usage::Client];
    let TlsSecrets { peer, server, client } = named;
    let (peer_names, server_names) = (terms.shared_peer_names(), terms.shared_server_names());
    let (of_peer, of_server, of_client) = (own.peer.as_ref(), own.server.as_ref(), own.client.as_ref());
    let demands = [
        Demand { names: &peer_names, usages: &BOTH },
        Demand { names: &server_names, usages: &[Usage::Server] },
        Demand { names: &[], usages: &[Usage::Client] },
    ];
    let judged = [
        (&peer.name, judge(of_peer, Trust::of(of_peer, &peer.name), &demands[0], now)),
        (&server.name, judge(of_server, Trust::of(of_client, &client.name), &demands[1], now)),
        (&client.name, judge(of_client, Trust::of(of_server, &server.name), &demands[2], now)),
    ];
    let mut faults = Faults::new();
    let mut lasting = Vec::new();
    for (name, judged) in judged {
        match judged {
            Ok(span) => lasting.push((span, name)),
            Err(found) => faults.extend(found.into_iter().map(|fault| (name.clone(), told(fault, terms)))),
        }
    }
    match lasting.into_iter().min() {
        Some((span, name)) if faults.is_empty() => {
            Certificates::Valid { secret: name.clone(), until: span.until, expiring: span.is_nearly_over(now) }
        }
        Some(_) | None => Certificates::Faulty(faults),
    }
}

/// Whether members would refuse what the operator is to show by these Secrets, or it them.
pub fn shuts_operator_out(found: &Certificates, named: &TlsSecrets) -> bool {
    let Certificates::Faulty(faults) = found else { return false };
    faults.iter().any(|(name, fault)| {
        *name == named.client.name || (*name == named.server.name && matches!(fault, Fault::UnknownAuthority(_)))
    })
}

/// Who is trusted by whom a certificate is shown to.
struct Trust {
    bundle: Option<String>,
    known_as: String,
}

impl Trust {
    fn of(secret: Option<&Secret>, name: &str) -> Self {
        let bundle = secret.and_then(|secret| text(secret, TLS_TRUSTED).ok());
        Self { bundle, known_as: format!("{TLS_TRUSTED} of Secret {name}") }
    }
}

fn judge(secret: Option<&Secret>, trust: Trust, demand: &Demand<'_>, now: Timestamp) -> Result<Span, Vec<Fault>> {
    let Some(secret) = secret else { return Err(vec![Fault::SecretMissing]) };
    let mut faults = Vec::new();
    let pair = pair(secret, TLS_CERTIFICATE, TLS_KEY).map_err(|fault| faults.push(fault));
    faults.extend(text(secret, TLS_TRUSTED).err());
    let Ok(pair) = pair else { return Err(faults) };
    // Whoever should trust it is not there, or trusts nobody: that is told of that Secret.
    let Some(bundle) = trust.bundle else { return Err(faults) };
    match check(&pair, &bundle, &trust.known_as, demand, now) {
        Ok(span) if faults.is_empty() => Ok(span),
        Ok(_) => Err(faults),
        Err(found) => Err([faults, found].concat()),
    }
}

/// A name that stands for all members is told as the wildcard that it takes.
fn told(fault: Fault, terms: &Terms<'_>) -> Fault {
    match fault {
        Fault::Name(name) => Fault::Name(terms.as_wildcard(&name)),
        other => other,
    }
}

impl OwnSecrets {
    /// What the operator shows, and whom it trusts.
    pub fn operator(&self) -> Result<(Pair, String), Fault> {
        let secret = self.client.as_ref().ok_or(Fault::SecretMissing)?;
        Ok((pair(secret, TLS_CERTIFICATE, TLS_KEY)?, text(secret, TLS_TRUSTED)?))
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::ByteString;
    use quorate_crds::{EtcdClusterSpec, LocalSecret};

    use super::super::fixture::{DOMAIN, LATER, NOW, Root, authority, cluster};
    use super::super::{Authority, Order, Wallet, client_secret};
    use super::*;

    fn named() -> TlsSecrets {
        let named = |name: &str| LocalSecret { name: name.into() };
        TlsSecrets { peer: named("my-peer"), server: named("my-server"), client: named("my-client") }
    }

    fn secret(authority: &Authority, names: &[&str], usages: &'static [Usage], trusted: &Authority) -> Secret {
        let order = Order {
            subject: "mine".into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            usages,
            lifetime: SignedDuration::from_hours(24),
        };
        let spec = EtcdClusterSpec::default();
        client_secret(&cluster(&spec), &authority.issue(&order, None, NOW).unwrap(), trusted.trusted())
    }

    const PEER: [&str; 2] = ["*.db.prod.svc", "*.db.prod.svc.cluster.local"];
    const SERVER: [&str; 2] = ["*.db.prod.svc", "db-client.prod.svc"];
    const BOTH: &[Usage] = &[Usage::Server, Usage::Client];

    fn good(peers: &Authority, clients: &Authority) -> OwnSecrets {
        OwnSecrets {
            peer: Some(secret(peers, &PEER, BOTH, peers)),
            server: Some(secret(clients, &SERVER, &[Usage::Server], clients)),
            client: Some(secret(clients, &[], &[Usage::Client], clients)),
        }
    }

    fn judged(own: &OwnSecrets, now: Timestamp) -> Result<(String, Timestamp, bool), Vec<String>> {
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        match judge_own(own, &named(), &terms, now) {
            Certificates::Valid { secret, until, expiring } => Ok((secret, until, expiring)),
            Certificates::Faulty(faults) => {
                Err(faults.into_iter().map(|(name, fault)| format!("{name}: {fault}")).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn secrets_that_fit_are_good_until_the_first_runs_out() {
        let (peers, clients) = (authority(), authority());
        let own = good(&peers, &clients);
        let until = NOW + SignedDuration::from_hours(24);
        assert_eq!(judged(&own, NOW), Ok(("my-client".into(), until, false)));
        let late = until - SignedDuration::from_hours(2);
        assert_eq!(judged(&own, late), Ok(("my-client".into(), until, true)));
    }

    type Plant<'a> = &'a dyn Fn(&mut OwnSecrets);

    #[test]
    fn each_planted_fault_is_told_with_its_secret() {
        let (peers, clients, foreign) = (authority(), authority(), authority());
        let planted = |change: Plant<'_>| {
            let mut own = good(&peers, &clients);
            change(&mut own);
            judged(&own, NOW).unwrap_err().join("; ")
        };
        let without = |key: &str, secret: &mut Option<Secret>| {
            secret.as_mut().unwrap().data.as_mut().unwrap().remove(key).unwrap();
        };
        let cases: [(Plant<'_>, &str); 9] = [
            (&|own| own.peer = None, "my-peer: it does not exist"),
            (&|own| without("tls.key", &mut own.peer), "my-peer: it has no tls.key"),
            (&|own| without("ca.crt", &mut own.peer), "my-peer: it has no ca.crt"),
            (
                &|own| own.peer = Some(secret(&peers, &["db-0.db.prod.svc"], BOTH, &peers)),
                "my-peer: it does not name *.db.prod.svc.cluster.local; my-peer: it does not name *.db.prod.svc",
            ),
            (
                &|own| own.peer = Some(secret(&peers, &PEER, &[Usage::Server], &peers)),
                "my-peer: its extended key usages lack client auth",
            ),
            (
                &|own| own.peer = Some(secret(&foreign, &PEER, BOTH, &peers)),
                "my-peer: no certificate in ca.crt of Secret my-peer has signed it",
            ),
            (
                &|own| own.server = Some(secret(&clients, &PEER[..1], &[Usage::Server], &clients)),
                "my-server: it does not name db-client.prod.svc",
            ),
            (
                &|own| own.server = Some(secret(&foreign, &SERVER, &[Usage::Server], &clients)),
                "my-server: no certificate in ca.crt of Secret my-client has signed it",
            ),
            (
                &|own| own.client = Some(secret(&foreign, &[], &[Usage::Client], &clients)),
                "my-client: no certificate in ca.crt of Secret my-server has signed it",
            ),
        ];
        for (change, told) in cases {
            assert_eq!(planted(change), told);
        }
    }

    #[test]
    fn the_operator_is_shut_out_by_what_it_shows_or_trusts_and_by_nothing_else() {
        let (peers, clients, foreign) = (authority(), authority(), authority());
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let is_shut_out = |change: Plant<'_>| {
            let mut own = good(&peers, &clients);
            change(&mut own);
            shuts_operator_out(&judge_own(&own, &named(), &terms, NOW), &named())
        };
        assert!(!is_shut_out(&|_| ()));
        assert!(!is_shut_out(&|own| own.peer = None));
        assert!(!is_shut_out(&|own| own.server = Some(secret(&clients, &PEER[..1], &[Usage::Server], &clients))));
        assert!(is_shut_out(&|own| own.client = None));
        assert!(is_shut_out(&|own| own.client = Some(secret(&foreign, &[], &[Usage::Client], &clients))));
        // It would trust somebody else than who signed what members show.
        assert!(is_shut_out(&|own| own.client = Some(secret(&clients, &[], &[Usage::Client], &foreign))));
    }

    #[test]
    fn the_operator_goes_on_showing_what_members_take_when_what_comes_in_its_place_can_not_be_used() {
        let (peers, clients, foreign) = (authority(), authority(), authority());
        let spec = EtcdClusterSpec::default();
        let terms = Terms { cluster: cluster(&spec), domain: DOMAIN };
        let wallet = Wallet::default();
        let shows = |own: &OwnSecrets| {
            wallet.take_own(own, &named(), &terms, NOW);
            wallet.shown_own() == own.operator().ok()
        };
        let first = good(&peers, &clients);
        let wrong = OwnSecrets { client: Some(secret(&foreign, &[], &[Usage::Client], &clients)), ..first.clone() };
        assert!(shows(&wrong), "there is nothing else to show");
        assert!(shows(&first));
        for worse in [wrong, OwnSecrets { client: None, ..first.clone() }] {
            assert!(!shows(&worse));
            assert_eq!(wallet.shown_own(), first.operator().ok());
            assert!(matches!(wallet.own_report(), Certificates::Faulty(_)));
        }
        let next = OwnSecrets { client: good(&peers, &clients).client, ..first };
        assert!(shows(&next), "one that can be used is shown at once");
    }

    #[test]
    fn what_has_run_out_or_has_another_key_is_told() {
        let (peers, clients) = (authority(), authority());
        let own = good(&peers, &clients);
        assert_eq!(judged(&own, LATER).unwrap_err().len(), 3);
        let mut mixed = own.clone();
        let key = own.peer.as_ref().and_then(|peer| peer.data.as_ref()).unwrap()["tls.key"].clone();
        mixed.client.as_mut().unwrap().data.as_mut().unwrap().insert("tls.key".into(), key);
        let told = judged(&mixed, NOW).unwrap_err();
        assert_eq!(told, ["my-client: the private key does not belong to the certificate"]);
    }

    #[test]
    fn a_chain_is_taken_whole_and_what_it_lacks_is_told_with_its_secret() {
        const HOUR: SignedDuration = SignedDuration::from_hours(1);
        let (root, clients) = (Root::make(), authority());
        let sound = good(&root.signer(), &clients);
        let with = |between: &str| {
            let mut own = sound.clone();
            let data = own.peer.as_mut().unwrap().data.as_mut().unwrap();
            data.get_mut("tls.crt").unwrap().0.extend(between.bytes());
            data.insert("ca.crt".into(), ByteString(root.trusted.clone().into_bytes()));
            own
        };
        let first = |found: (String, Timestamp, bool)| (found.0, found.1);
        let until = NOW + HOUR * 24;
        assert_eq!(judged(&with(&root.between(LATER)), NOW).map(first), Ok(("my-client".into(), until)));
        let short = with(&root.between(NOW + HOUR));
        assert_eq!(judged(&short, NOW).map(first), Ok(("my-peer".into(), NOW + HOUR)));
        let told = "my-peer: a certificate between it and its authority can't be used now";
        assert_eq!(judged(&short, NOW + HOUR * 2).unwrap_err(), [told]);
        let told = "my-peer: no certificate in ca.crt of Secret my-peer has signed it";
        assert_eq!(judged(&with(""), NOW).unwrap_err(), [told]);
    }

    #[test]
    fn nothing_at_all_is_three_faults_and_no_operator() {
        assert_eq!(judged(&OwnSecrets::default(), NOW).unwrap_err().len(), 3);
        assert_eq!(OwnSecrets::default().operator().unwrap_err(), Fault::SecretMissing);
        assert!(good(&authority(), &authority()).operator().is_ok());
    }
}
