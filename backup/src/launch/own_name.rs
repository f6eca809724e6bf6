//! Waits until DNS knows the member under the name by which its peers are to know it. It starts nothing, and refuses nothing:
//! an etcd whose name stays unknown says so best itself.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, sleep, timeout_at};
use url::{Host, Url};

/// For how long it is waited for a name. A pod's name is known to DNS some 10 to 300 ms after its address is; one that
/// was asked for too early by anybody may be remembered as unknown for up to 30 s (`cache` in a Corefile).
const NAME_PATIENCE: Duration = Duration::from_secs(10);
/// The first pause between two questions, and the longest: each doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(320);
/// The flag with the addresses that etcd gives to its peers.
const ADVERTISED: &str = "--initial-advertise-peer-urls=";

/// Waits until the names in the peer URLs of these flags of etcd's are this pod's, for a bounded time.
///
/// A new etcd gives up its first start a second long where it does not find its own name (`resolveURL` in etcd's
/// `pkg/netutil`), and ends where a peer does not find the address that it comes from under the name in its certificate
/// (`checkCertSAN` in `client/pkg/transport/listener_tls.go`): it has nobody else to learn of the cluster from.
pub async fn is_known(flags: &[String]) {
    for name in names(flags) {
        match wait_for(&name, resolve).await {
            Ok(()) => {}
            Err(last) => tracing::warn!(
                %name, %last, "DNS does not know this pod by its name after {NAME_PATIENCE:?}; etcd is started without that"
            ),
        }
    }
}

/// The names in the peer URLs that etcd is to advertise. What is no URL is for etcd to refuse.
fn names(flags: &[String]) -> Vec<String> {
    let urls = flags.iter().filter_map(|flag| flag.strip_prefix(ADVERTISED)).flat_map(|urls| urls.split(','));
    let names = urls.filter_map(|url| match Url::parse(url).ok()?.host()? {
        Host::Domain(name) => Some(name.to_owned()),
        Host::Ipv4(_) | Host::Ipv6(_) => None,
    });
    names.collect()
}

/// Asks until one of the addresses is this pod's; the last answer, if that does not come about in time.
async fn wait_for(name: &str, mut ask: impl AsyncFnMut(&str) -> io::Result<Vec<IpAddr>>) -> Result<(), String> {
    let end = Instant::now() + NAME_PATIENCE;
    let mut pause = PAUSE_FIRST;
    let mut last = "no answer".to_owned();
    loop {
        match timeout_at(end, ask(name)).await {
            Ok(Ok(addresses)) if addresses.iter().any(|address| is_ours(*address)) => return Ok(()),
            Ok(Ok(addresses)) => last = format!("{addresses:?}, of which none is this pod's"),
            Ok(Err(fault)) => last = fault.to_string(),
            Err(_) => return Err(last),
        }
        if Instant::now() + pause > end {
            return Err(last);
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

async fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok(lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
}

/// Whether an address is one of this pod's: only then can something be bound to it.
fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;

    use super::*;

    const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// Of a block for documentation (RFC 5737): nobody's.
    const ANOTHERS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    /// What comes of waiting where DNS gives these answers in turn and the last for ever, how often it was asked, and for how
    /// long.
    async fn asked(
        answers: impl IntoIterator<Item = Result<Vec<IpAddr>, &'static str>>,
    ) -> (Result<(), String>, usize, Duration) {
        let (started, mut asked) = (Instant::now(), 0);
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        let result = wait_for("db-0.db", async |name| {
            assert_eq!(name, "db-0.db");
            asked += 1;
            let answer = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
            answer.map_err(io::Error::other)
        });
        (result.await, asked, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_known_holds_nothing_up() {
        assert_eq!(asked([Ok(vec![ANOTHERS, OURS])]).await, (Ok(()), 1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_waited_for_until_it_is_this_pods() {
        let (result, times, took) = asked([Err("no such name"), Ok(vec![]), Ok(vec![ANOTHERS]), Ok(vec![OURS])]).await;
        assert_eq!((result, times), (Ok(()), 4));
        assert_eq!(took, PAUSE_FIRST * 7, "20, 40 and 80 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_stays_unknown_is_given_up_and_said() {
        let (result, times, took) = asked([Err("no such name")]).await;
        assert_eq!(result, Err("no such name".to_owned()));
        assert!(took <= NAME_PATIENCE && took + PAUSE_LONGEST > NAME_PATIENCE, "{took:?}");
        assert!(times < 40, "asked {times} times");
        let (result, _, _) = asked([Ok(vec![ANOTHERS])]).await;
        assert_eq!(result, Err("[192.0.2.7], of which none is this pod's".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_is_not_waited_for_any_longer() {
        let started = Instant::now();
        let result = wait_for("db-0.db", async |_| std::future::pending().await).await;
        assert_eq!((result, started.elapsed()), (Err("no answer".to_owned()), NAME_PATIENCE));
    }

    #[tokio::test]
    async fn the_resolver_of_this_machine_knows_it_as_localhost() {
        assert!(resolve("localhost").await.unwrap().into_iter().all(is_ours));
        assert!(!is_ours(ANOTHERS));
    }

    #[test]
    fn names_are_read_from_what_etcd_is_to_advertise_to_its_peers_alone() {
        let flags = |urls: &str| {
            vec![
                "--name=db-0".to_owned(),
                format!("{ADVERTISED}{urls}"),
                "--advertise-client-urls=https://c:1".to_owned(),
            ]
        };
        assert_eq!(names(&flags("https://db-0.db.ns.svc:2380")), ["db-0.db.ns.svc"]);
        assert_eq!(names(&flags("http://a:1,https://10.0.0.1:2380,http://[::1]:2380,http://b:2")), ["a", "b"]);
        assert_eq!(names(&flags("")), <[&str; 0]>::default());
        assert_eq!(names(&flags("2380,unix://x")), ["x"]);
        assert_eq!(names(&[]), <[&str; 0]>::default());
    }
}
