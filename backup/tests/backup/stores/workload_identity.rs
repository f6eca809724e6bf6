//! The workload identity of a pod for Azure: Entra exchanges the pod's token for one that the store takes. Entra is a double; the
//! store is azurite, which takes such tokens over TLS alone, so that both speak it.

use std::fs;
use std::net::Ipv4Addr;

use quorate_backup::snapshot::Reason;

use super::ambient::STRAY;
use super::azure::Azurite;
use super::certificates::Authority;
use super::place::Place;
use super::pod_token::{self, HOUR, LIFETIMES, PodToken, is_enough};
use crate::clouds::answers::{Answers, Shown};
use crate::clouds::entra::{self, CLIENT, Granting, TENANT};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

/// Entra, and the token that it takes.
struct Entra {
    /// With a slash at its end, as Azure's webhook writes it.
    authority: String,
    token: PodToken,
    path: String,
    ca: String,
    _answers: Answers,
}

impl Entra {
    fn start(authority: &Authority, granting: Granting<'static>) -> Self {
        let token = PodToken::new();
        let leaf = authority.signs(Ipv4Addr::LOCALHOST);
        let shown = Shown { certificate: &leaf.certificate, key: &leaf.key };
        let judge = token.clone();
        let answers = Answers::over_tls(Ipv4Addr::LOCALHOST, &shown, move |head, body| {
            entra::answer(head, body, granting, |token| judge.takes(token))
        });
        let (path, ca) = (token.path(), token.beside("ca.crt", &authority.certificate()));
        Self { authority: format!("{}/", answers.url), token, path, ca, _answers: answers }
    }

    /// As the webhook of the cloud sets them; and whom to trust.
    fn variables<'a>(&'a self, client: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("AZURE_CLIENT_ID", client),
            ("AZURE_TENANT_ID", TENANT),
            ("AZURE_FEDERATED_TOKEN_FILE", self.path.as_str()),
            ("AZURE_AUTHORITY_HOST", self.authority.as_str()),
            ("QUORATE_STORE_CA", self.ca.as_str()),
        ]
    }
}

/// By a token that outlasts each process, and by ones that have run out by the next request.
pub fn is_exchanged() {
    let authority = Authority::new("azure");
    let Some(server) = Azurite::over_tls(&authority) else { return };
    for (prefix, lasting) in LIFETIMES {
        let entra = Entra::start(&authority, Granting::for_stores(lasting));
        let variables = [&entra.variables(CLIENT)[..], &STRAY].concat();
        is_enough(&server.bare(prefix), &variables, lasting, &entra.token.taken);
    }
}

/// A snapshot with these variables fails for this reason, and says so in these words: never with a token.
fn expect_told(place: &Place, variables: &[(&str, &str)], reason: Reason, words: &[&str]) {
    let failure = place.failure_with(variables, &Served::start(Mood::Sound, large(0)));
    pod_token::expect_told(&failure, reason, words, &["client_assertion", "Bearer"]);
}

pub fn that_is_not_exchanged_is_told() {
    let authority = Authority::new("azure");
    let Some(server) = Azurite::over_tls(&authority) else { return };
    let (entra, place) = (Entra::start(&authority, Granting::for_stores(HOUR)), server.bare("refused"));
    expect_told(&place, &entra.variables("another"), Reason::StoreRefused, &["unauthorized_client", "AADSTS700016"]);
    entra.token.renew("projected-for-somebody-else");
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreRefused, &["invalid_client", "AADSTS700213"]);
    fs::remove_file(&entra.path).unwrap();
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreFailed, &["federated token file"]);
    assert_eq!(entra.token.taken.times(), 0);
    // One that is handed out for something else than a store.
    let entra = Entra::start(&authority, Granting { audience: "https://vault.azure.net", lasting: HOUR });
    expect_told(&place, &entra.variables(CLIENT), Reason::StoreRefused, &["AuthenticationFailed"]);
    assert_eq!(entra.token.taken.times(), 1);
}
