//! What Microsoft's Entra answers who shows it a pod's token for one that Azure's stores take (workload identity), as much as the
//! library asks for. Whose token it is is for the server to say. As Microsoft documents it (`v2-oauth2-client-creds-grant-flow`, the
//! third case).

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use http::request::Parts;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use url::form_urlencoded;

use super::answers::{Answer, document, with_status};

pub const TENANT: &str = "7a1f0b1e-0c8e-4a0c-9a66-2d1f0a3c5e77";
pub const CLIENT: &str = "c0ffee00-5d9b-4f0e-8f0e-1f3b5d7f9b11";
/// For whom a token is that is shown to a store.
const STORES: &str = "https://storage.azure.com";
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// What it says of the tokens that it hands out.
#[derive(Clone, Copy, Debug)]
pub struct Granting<'a> {
    /// For whom they are.
    pub audience: &'a str,
    /// How long the client is told that they last. In truth it is an hour.
    pub lasting: SignedDuration,
}

impl Granting<'_> {
    /// As the library asks for it.
    pub fn for_stores(lasting: SignedDuration) -> Self {
        Self { audience: STORES, lasting }
    }
}

/// A token of [`CLIENT`], unless something is held against the request or the pod's token in it.
pub fn answer(head: &Parts, body: &[u8], granting: Granting<'_>, takes: impl Fn(&str) -> bool) -> Answer {
    let asked: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
    let is = |name: &str, value: &str| asked.get(name).is_some_and(|asked| asked == value);
    if head.method != Method::POST || head.uri.path() != format!("/{TENANT}/oauth2/v2.0/token") {
        return refusal(StatusCode::BAD_REQUEST, "invalid_request", "AADSTS90002: Tenant not found.");
    }
    let kind = is("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");
    if !is("grant_type", "client_credentials") || !is("scope", &format!("{STORES}/.default")) || !kind {
        return refusal(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            "AADSTS900144: The request body is not well formed.",
        );
    }
    if !is("client_id", CLIENT) {
        let words = "AADSTS700016: Application was not found in the directory.";
        return refusal(StatusCode::BAD_REQUEST, "unauthorized_client", words);
    }
    if !asked.get("client_assertion").is_some_and(|token| takes(token)) {
        let words = "AADSTS700213: No matching federated identity record found for presented assertion subject.";
        return refusal(StatusCode::UNAUTHORIZED, "invalid_client", words);
    }
    let Granting { audience, lasting } = granting;
    let token = token(audience);
    document(&json!({"token_type": "Bearer", "expires_in": lasting.as_secs(), "access_token": token}))
}

fn refusal(status: StatusCode, error: &str, description: &str) -> Answer {
    with_status(status, json!({"error": error, "error_description": description}).to_string())
}

/// A token that says what Entra's do. Who takes it here does not look at who has signed it, so nobody has.
fn token(audience: &str) -> String {
    let now = Timestamp::now();
    let claims = json!({
        "aud": audience,
        "iss": format!("https://sts.windows.net/{TENANT}/"),
        "iat": now.as_second(),
        "nbf": now.as_second(),
        "exp": (now + HOUR).as_second(),
        "appid": CLIENT,
        "tid": TENANT,
    });
    let said = [json!({"typ": "JWT", "alg": "RS256"}), claims].map(|part| encoded(&part.to_string()));
    format!("{}.{}", said.join("."), encoded("unsigned"))
}

fn encoded(text: &str) -> String {
    BASE64URL_NOPAD.encode(text.as_bytes())
}
