//! Asks the Job that takes a backup how far it is. What it says decides nothing, so who does not answer is not waited for.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Pod;
use quorate_backup::snapshot::{PATH, PORT, Progress};
use quorate_etcd::plain_http;

use crate::jobs;

/// How far the one of these pods that runs is.
pub async fn ask(pods: &[Pod]) -> Option<Progress> {
    let ip = jobs::address(pods)?;
    let answer = plain_http::get(SocketAddr::new(ip, PORT), PATH).await;
    let answer = answer.inspect_err(|error| tracing::trace!(%ip, %error, "a Job's pod does not answer")).ok()?;
    serde_json::from_slice(&answer.status.is_success().then_some(answer.body)?).ok()
}
