//! Sends a ticket straight to the launcher that waits for it. The annotation was written before and stays the record: a
//! ticket that does not arrive this way arrives by the kubelet, up to a second later. Nothing is ever sent instead.

use std::net::{IpAddr, SocketAddr};

use http::StatusCode;
use quorate_backup::ticket::PodUid;
use quorate_backup::ticket_push::{self, SigningKey};
use quorate_etcd::plain_http;
use quorate_statemachine::Uid;

use crate::cluster::render::METRICS_PORT;

/// Signs tickets and sends them. Its key lives and dies with this process, so no Secret holds it: the pods that another
/// operator made take their tickets from the annotation alone.
#[derive(Debug)]
pub struct Courier {
    key: SigningKey,
    public_key: String,
}

impl Courier {
    /// With a new key. `None` if there is no randomness to make one from.
    pub fn new() -> Option<Self> {
        let made = SigningKey::generate().and_then(|key| Ok((key.public_key()?.to_string(), key)));
        match made {
            Ok((public_key, key)) => Some(Self { key, public_key }),
            Err(error) => {
                tracing::warn!(%error, "tickets are left to the kubelet");
                None
            }
        }
    }

    /// The key that launchers verify by, as the pods that this process makes carry it.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Sends a ticket's text to the launcher of a pod. It may fail: then the annotation is all there is, as it would
    /// have been anyway.
    pub async fn hand_over(&self, ip: IpAddr, pod: &Uid, text: &str) {
        let pushed = ticket_push::sign(&self.key, &PodUid::from(pod.as_str()), text);
        // A struct of three strings; serializing it does not fail.
        let Ok(body) = serde_json::to_vec(&pushed) else { return };
        match plain_http::post(SocketAddr::new(ip, METRICS_PORT), ticket_push::PATH, body).await {
            Ok(answer) if answer.status == StatusCode::ACCEPTED => {
                tracing::debug!(%ip, "a launcher took its ticket");
            }
            Ok(answer) => {
                tracing::debug!(%ip, status = %answer.status, "a launcher awaits its ticket from the kubelet");
            }
            Err(error) => tracing::debug!(%ip, %error, "a launcher awaits its ticket from the kubelet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_backup::ticket_push::{PublicKey, PushedTicket};

    use super::*;

    #[test]
    fn the_key_that_pods_carry_verifies_what_is_sent() {
        let courier = Courier::new().unwrap();
        let pod = PodUid::from("p");
        let pushed: PushedTicket = ticket_push::sign(&courier.key, &pod, "text");
        let key: PublicKey = courier.public_key().parse().unwrap();
        assert_eq!(pushed.verify(&key, &pod), Ok(()));
        let another: PublicKey = Courier::new().unwrap().public_key().parse().unwrap();
        assert!(pushed.verify(&another, &pod).is_err());
    }
}
