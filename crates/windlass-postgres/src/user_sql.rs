//! User SQL: runs in one transaction with its commit.
//!
//! First the guards are checked. Then the user's statements run without any lock of the store. Then
//! the batch function takes locks, checks again and writes. So the store never waits for the user's
//! statements while it holds locks, and if a guard fails in between, the user's rows are rolled
//! back.

mod convert;

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Transaction};
use windlass_kernel::{Commit, CommitError, CommitKey, Error, Statement};

use crate::apply::{Answers, Batch, CALL, Mode, read_answers, unavailable};
use crate::committer::{Outcome, answer_constraint, decide, resolve};
use crate::error::{Failure, call_error, classify, error_text, is_unique, unknown};
use crate::options::PLANNER;
use crate::store::Shared;

use convert::Converted;

/// How often a transaction is tried that loses a deadlock or whose answer is lost.
const TRIES_MAX: u32 = 10;

/// The end of an attempt.
enum Ended {
    /// The batch function answered; the result is durable if it is a success.
    Answered(Box<Answers>),
    /// A user statement failed, and nothing was written.
    User { unique: bool, message: String },
    /// A statement of the store failed.
    Engine(tokio_postgres::Error),
    /// There is no connection.
    NoConnection(Error),
}

/// Writes a commit with user SQL.
pub(crate) async fn run(shared: &Shared, commit: &Commit) -> Outcome {
    match decide(shared, commit).await {
        Ok(answers) => {
            if let Some(Err(error)) = answers.results.into_iter().next() {
                return finish_outcome(shared, commit, Err(error)).await;
            }
        }
        Err(error) => return Err(unavailable(error)),
    }
    if let Some(message) = commit.user_sql().find_map(forbidden) {
        return Err(CommitError::UserSql { unique: false, message });
    }
    let mut lost = false;
    for attempt in 1..=TRIES_MAX {
        match attempt_once(shared, commit).await {
            Ended::Answered(answers) => {
                shared.waker.publish(answers.wakeups);
                let outcome = answers.results.into_iter().next();
                let outcome = outcome
                    .unwrap_or_else(|| Err(unknown("the batch function returned no result")));
                return finish_outcome(shared, commit, outcome).await;
            }
            Ended::User { unique, message } => {
                return answer_user_error(shared, commit, unique, message, lost).await;
            }
            Ended::Engine(error) => match classify(&error) {
                Failure::Lost => lost = true,
                Failure::Retry | Failure::NeedsChecks | Failure::ReadOnly => {}
                Failure::Constraint => {
                    return answer_constraint(shared, commit, &error, lost).await;
                }
                Failure::Unavailable if lost => return Err(unknown(&error_text(&error))),
                Failure::Unavailable => return Err(unavailable(call_error(error))),
            },
            Ended::NoConnection(error) if !lost => return Err(unavailable(error)),
            Ended::NoConnection(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(20 << attempt.min(8))).await;
    }
    Err(if lost {
        unknown("the answers to a commit with user SQL were lost")
    } else {
        let message =
            "a commit with user SQL lost every attempt to other transactions; retry later";
        unavailable(crate::error::unavailable(message))
    })
}

// A conflict may mean that this commit was written before.
async fn finish_outcome(shared: &Shared, commit: &Commit, outcome: Outcome) -> Outcome {
    match outcome {
        Err(conflict @ CommitError::Conflict(_)) if commit.key != CommitKey::Nothing => {
            resolve(shared, commit, conflict).await
        }
        other => other,
    }
}

// A user statement failed. If an earlier attempt of this commit was written over a lost connection,
// the statement may have failed on the rows of that attempt. The guards, checked under locks, show
// whether that happened.
async fn answer_user_error(
    shared: &Shared,
    commit: &Commit,
    unique: bool,
    message: String,
    lost: bool,
) -> Outcome {
    match decide(shared, commit).await {
        Ok(answers) => match answers.results.into_iter().next() {
            Some(Err(error)) => finish_outcome(shared, commit, Err(error)).await,
            // There is no guard, but the commit's key shows it.
            _ if lost && commit.is_unguarded() => {
                resolve(shared, commit, CommitError::UserSql { unique, message }).await
            }
            _ => Err(CommitError::UserSql { unique, message }),
        },
        Err(error) if lost => Err(unknown(&error.to_string())),
        Err(error) => Err(unavailable(error)),
    }
}

async fn attempt_once(shared: &Shared, commit: &Commit) -> Ended {
    let mut client = match shared.client().await {
        Ok(client) => client,
        Err(error) => return Ended::NoConnection(error),
    };
    let ended = transact(shared, commit, &mut client).await;
    if let Ended::Engine(_) = &ended {
        // The state of the connection is unknown, so it must not go back to the pool.
        drop(deadpool_postgres::Object::take(client));
    }
    ended
}

async fn transact(shared: &Shared, commit: &Commit, client: &mut Client) -> Ended {
    let timeout = shared.options.user_sql_timeout.as_millis();
    let begun = async {
        let transaction = client.transaction().await?;
        // The planner settings of the store must not apply to user statements.
        let planner: String =
            PLANNER.iter().map(|(name, _)| format!("SET LOCAL {name} TO DEFAULT; ")).collect();
        let settings = format!(
            "{planner} SET LOCAL statement_timeout = {timeout}; \
                         SET LOCAL lock_timeout = {timeout}"
        );
        transaction.batch_execute(&settings).await?;
        let row = transaction.query_one("SELECT pg_current_xact_id()::text", &[]).await?;
        let id: String = row.try_get(0)?;
        Ok::<_, tokio_postgres::Error>((transaction, id))
    };
    let (transaction, id) = match begun.await {
        Ok(begun) => begun,
        Err(error) => return Ended::Engine(error),
    };
    for statement in commit.user_sql() {
        if let Err(ended) = execute(&transaction, statement).await {
            return ended;
        }
    }
    match finish(shared, commit, transaction, &id).await {
        Ok(ended) => ended,
        Err(error) => Ended::Engine(error),
    }
}

// The end of an attempt in which a statement of the user failed.
fn user_error(error: tokio_postgres::Error) -> Ended {
    match classify(&error) {
        Failure::Lost | Failure::Retry | Failure::ReadOnly => Ended::Engine(error),
        _ => Ended::User { unique: is_unique(&error), message: error_text(&error) },
    }
}

async fn execute(transaction: &Transaction<'_>, statement: &Statement) -> Result<(), Ended> {
    let prepared = transaction.prepare(&statement.sql).await.map_err(user_error)?;
    let types = prepared.params();
    if types.len() != statement.params.len() {
        let (wanted, given) = (types.len(), statement.params.len());
        let message = format!("a statement has {wanted} placeholders and {given} parameters");
        return Err(Ended::User { unique: false, message });
    }
    let convert = |(value, ty)| Converted::of(value, ty);
    let values = statement
        .params
        .iter()
        .zip(types)
        .map(convert)
        .collect::<Result<Vec<_>, String>>()
        .map_err(|message| Ended::User { unique: false, message })?;
    let params: Vec<&(dyn ToSql + Sync)> =
        values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    transaction.execute(&prepared, &params).await.map_err(user_error)?;
    Ok(())
}

async fn finish(
    shared: &Shared,
    commit: &Commit,
    transaction: Transaction<'_>,
    id: &str,
) -> Result<Ended, tokio_postgres::Error> {
    let row = transaction.query_one("SELECT pg_current_xact_id()::text", &[]).await?;
    if row.try_get::<_, String>(0)? != id {
        let message = "a statement ended the transaction of the commit".to_owned();
        return Ok(Ended::User { unique: false, message });
    }
    // Deferred constraints of the user's tables would fail COMMIT, after the store's own rows, where
    // nothing shows whose rows are at fault.
    if let Err(error) = transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await {
        return Ok(user_error(error));
    }
    let planner: String =
        PLANNER.iter().map(|(name, value)| format!("SET LOCAL {name} = {value}; ")).collect();
    let settings = format!(
        "{planner} SET LOCAL synchronous_commit = on; SET LOCAL statement_timeout = {}; \
         SET LOCAL lock_timeout = {}",
        shared.options.statement_timeout.as_millis(),
        shared.options.lock_timeout.as_millis(),
    );
    transaction.batch_execute(&settings).await?;
    let batch = Batch::of(&[commit]);
    let mode = Mode::Checked as i16;
    let call = transaction.prepare(&shared.sql(CALL)).await?;
    let rows = transaction.query(&call, &batch.params(&mode)).await?;
    let answers = match read_answers(&[commit], &rows) {
        Ok(answers) => answers,
        Err(error) => return Ok(Ended::NoConnection(error)),
    };
    match answers.results.first() {
        Some(Ok(committed)) if !committed.repeated => transaction.commit().await?,
        _ => transaction.rollback().await?,
    }
    Ok(Ended::Answered(Box::new(answers)))
}

// The extended protocol runs one statement at a time, so the first word identifies it.
fn forbidden(statement: &Statement) -> Option<String> {
    let words = first_words(&statement.sql);
    let (first, second) = (words[0].as_str(), words[1].as_str());
    let forbidden = match first {
        "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "savepoint" | "release"
        | "prepare" | "execute" | "deallocate" | "discard" | "reset" | "listen" | "unlisten"
        | "copy" => true,
        // A session setting would stay with the connection.
        "set" => second != "local",
        _ => false,
    };
    forbidden.then(|| format!("{} is not allowed in user SQL", first.to_uppercase()))
}

fn first_words(sql: &str) -> [String; 2] {
    let mut rest = sql;
    let mut words = [String::new(), String::new()];
    for word in &mut words {
        rest = skip_comments(rest);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        *word = rest[..end].to_ascii_lowercase();
        rest = &rest[end..];
    }
    words
}

fn skip_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if let Some(comment) = text.strip_prefix("--") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if text.starts_with("/*") {
            text = after_block(text);
        } else {
            return text;
        }
    }
}

// Block comments nest in PostgreSQL.
fn after_block(text: &str) -> &str {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return &text[at..];
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expect: Option<&str>) {
        let statement = Statement { sql: sql.into(), params: Vec::new() };
        let found = forbidden(&statement);
        assert_eq!(found.as_deref().map(|text| text.split(' ').next().unwrap()), expect, "{sql}");
    }

    #[test]
    fn transaction_control_is_found_after_comments() {
        check("INSERT INTO t VALUES ($1)", None);
        check("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", None);
        check("commit", Some("COMMIT"));
        check("  -- hello\n /* a /* nested */ one */ ;COMMIT AND CHAIN", Some("COMMIT"));
        check("Rollback to savepoint x", Some("ROLLBACK"));
        check("SAVEPOINT x", Some("SAVEPOINT"));
        check("SET search_path = x", Some("SET"));
        check("set local work_mem = '1MB'", None);
        check("/* never ends", None);
    }
}
