//! What keeps a mistake of ours in one object's round from ending the operator: the round has a task of its own, where a
//! panic is caught and counted. What comes after a round that failed is up to who asked for it.

use crate::metrics::Metrics;

/// The round ended in a panic: a mistake of ours, that must not take the other objects along.
#[derive(Debug, thiserror::Error)]
#[error("failed to finish the round: {0}")]
pub struct Panic(String);

/// A round, as the task that it has to itself ended: a panic is that round's failure and nobody else's. It begins at once:
/// whoever waits for it holds no more than the task, so that no caller's own future has the round's as a part.
pub fn guarded<T, E>(
    metrics: &Metrics,
    round: impl Future<Output = Result<T, E>> + Send + 'static,
) -> impl Future<Output = Result<T, E>>
where
    T: Send + 'static,
    E: From<Panic> + Send + 'static,
{
    let task = tokio::spawn(round);
    async move {
        task.await.unwrap_or_else(|error| {
            if error.is_panic() {
                metrics.panicked();
            }
            Err(Panic(error.to_string()).into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panics(metrics: &Metrics) -> String {
        let text = metrics.render().unwrap();
        text.lines().find(|line| line.starts_with("quorate_panics_total")).unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_that_is_counted_and_any_other_end_is_handed_on() {
        let metrics = Metrics::new();
        let fine: Result<u8, Panic> = guarded(&metrics, async { Ok(1) }).await;
        assert_eq!((fine.unwrap(), panics(&metrics).as_str()), (1, "quorate_panics_total 0"));
        let failed: Result<u8, Panic> = guarded(&metrics, async { Err(Panic("of the round's own".into())) }).await;
        assert!(failed.unwrap_err().to_string().ends_with("of the round's own"));
        let panicked: Result<u8, Panic> = guarded(&metrics, async { panic!("a mistake") }).await;
        assert!(panicked.unwrap_err().to_string().contains("a mistake"));
        assert_eq!(panics(&metrics), "quorate_panics_total 1");
    }
}
