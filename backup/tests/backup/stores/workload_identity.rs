//! The workload identity of a pod for Azure: Entra exchanges the pod's token for one that the store takes. Entra is a double; the
//! store is azurite, which takes such tokens over TLS alone, so that both speak it.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use quorate_backup::snapshot::Reason;
use tempfile::TempDir;

use super::ambient::STRAY;
use super::azure::Azurite;
use super::certificates::Authority;
use super::place::Place;
use crate::clouds::answers::{Answers, Shown};
use crate::clouds::entra::{self, CLIENT, Granting, TENANT};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// Entra, and the file in which the kubelet keeps the pod's token. Each token is taken once, and the next one is in the file by
/// then.
struct Entra {
    /// With a slash at its end, as Azure's webhook writes it.
    authority: String,
    exchanges: Arc<AtomicUsize>,
    token: String,
    ca: String,
    _answers: Answers,
    _folder: TempDir,
}

impl Entra {
    fn start(authority: &Authority, granting: Granting<'static>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (token, ca) = (file("token", token(0)), file("ca.crt", authority.certificate()));
        let exchanges = Arc::<AtomicUsize>::default();
        let (renewed, number) = (token.clone(), Arc::clone(&exchanges));
        let leaf = authority.signs(Ipv4Addr::LOCALHOST);
        let shown = Shown { certificate: &leaf.certificate, key: &leaf.key };
        let answers = Answers::over_tls(Ipv4Addr::LOCALHOST, &shown, move |head, body| {
            entra::answer(head, body, granting, |token| {
                let used = number.load(Ordering::SeqCst);
                if token != self::token(used) {
                    return false;
                }
                fs::write(&renewed, self::token(used + 1)).unwrap();
                number.store(used + 1, Ordering::SeqCst);
                true
            })
        });
        Self { authority: format!("{}/", answers.url), exchanges, token, ca, _answers: answers, _folder: folder }
    }

    /// As the webhook of the cloud sets them; and whom to trust.
    fn variables<'a>(&'a self, client: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("AZURE_CLIENT_ID", client),
            ("AZURE_TENANT_ID", TENANT),
            ("AZURE_FEDERATED_TOKEN_FILE", self.token.as_str()),
            ("AZURE_AUTHORITY_HOST", self.authority.as_str()),
            ("QUORATE_STORE_CA", self.ca.as_str()),
        ]
    }

    /// How many exchanges there have been since this was asked last.
    fn exchanges_since(&self, before: &mut usize) -> usize {
        let now = self.exchanges.load(Ordering::SeqCst);
        now - std::mem::replace(before, now)
    }
}

/// What no message may show.
fn token(number: usize) -> String {
    format!("projected-{number}")
}

/// A backup is put, listed and read: by a token that outlasts each process, and by ones that have run out by the next request.
pub fn is_exchanged() {
    let authority = Authority::new("azure");
    let Some(server) = Azurite::over_tls(&authority) else { return };
    let member = Served::start(Mood::Sound, large(0));
    let scratch = tempfile::tempdir().unwrap();
    let proof = ["--lineage", "blue", "--scratch", scratch.path().to_str().unwrap()];
    for (prefix, lasting) in [("lasting", HOUR), ("brief", SignedDuration::ZERO)] {
        let (entra, place) = (Entra::start(&authority, Granting::for_stores(lasting)), server.bare(prefix));
        let variables = [&entra.variables(CLIENT)[..], &STRAY].concat();
        let mut before = 0;
        let mut exchanged = || {
            let exchanges = entra.exchanges_since(&mut before);
            let as_often_as_needed = if lasting.is_zero() { exchanges > 1 } else { exchanges == 1 };
            assert!(as_often_as_needed, "{prefix}: {exchanges}");
        };
        let taken = place.snapshot_with(&variables, &member).json();
        assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
        exchanged();
        let listed = place.run_with(&variables, "list", &[]).json();
        assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
        exchanged();
        let proved = place.run_with(&variables, "verify", &proof).json();
        assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
        exchanged();
    }
}

/// A snapshot with these variables fails for this reason, and says so in these words: never with a token.
fn expect_told(place: &Place, variables: &[(&str, &str)], reason: Reason, words: &[&str]) {
    let failure = place.failure_with(variables, &Served::start(Mood::Sound, large(0)));
    assert_eq!(failure.reason, reason, "{}", failure.message);
    for word in words {
        assert!(failure.message.contains(word), "{word}: {}", failure.message);
    }
    for secret in ["projected", "client_assertion", "Bearer"] {
        assert!(!failure.message.contains(secret), "{secret}: {}", failure.message);
    }
}

pub fn that_is_not_exchanged_is_told() {
    let authority = Authority::new("azure");
    let Some(server) = Azurite::over_tls(&authority) else { return };
    let (entra, place) = (Entra::start(&authority, Granting::for_stores(HOUR)), server.bare("refused"));
    expect_told(&place, &entra.variables("another"), Reason::StoreRefused, &["unauthorized_client", "AADSTS700016"]);
    fs::write(&entra.token, "projected-for-somebody-else").unwrap();
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreRefused, &["invalid_client", "AADSTS700213"]);
    fs::remove_file(&entra.token).unwrap();
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreFailed, &["federated token file"]);
    assert_eq!(entra.exchanges.load(Ordering::SeqCst), 0);
    // One that is handed out for something else than a store.
    let entra = Entra::start(&authority, Granting { audience: "https://vault.azure.net", lasting: HOUR });
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreRefused, &["AuthenticationFailed"]);
    assert_eq!(entra.exchanges.load(Ordering::SeqCst), 1);
}
