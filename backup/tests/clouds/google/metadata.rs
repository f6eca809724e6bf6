//! What Google's metadata server answers an instance, or a pod with a workload identity, that asks for a token of its account. As
//! Google documents it (`compute/docs/metadata/overview`, `access/authenticate-workloads`).

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use jiff::SignedDuration;
use serde_json::json;

use crate::clouds::answers::{Answer, document, with_status};

/// What is asked has to say that it is meant, and what is answered says who does.
const FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Hands out this token, which is said to last so long. None: the instance has no account.
pub fn answer(head: &Parts, token: Option<&str>, lasting: SignedDuration) -> Answer {
    let mut answer = match token {
        _ if head.headers.get(FLAVOR).is_none_or(|flavor| flavor != "Google") => {
            with_status(StatusCode::FORBIDDEN, "Missing Metadata-Flavor:Google header.".to_owned())
        }
        Some(token) if head.method == Method::GET && head.uri.path() == TOKEN => {
            document(&json!({"access_token": token, "expires_in": lasting.as_secs(), "token_type": "Bearer"}))
        }
        Some(_) | None => with_status(StatusCode::NOT_FOUND, "The requested URL was not found.".to_owned()),
    };
    answer.headers_mut().insert(FLAVOR, HeaderValue::from_static("Google"));
    answer
}
