//! The authority: the account, when it wants a certificate to be renewed, and orders.
//!
//! A call returns when the authority has answered. Each error has the message of the authority, and the time
//! before which it wants no further request.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::str::FromStr;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use headway_config::{AcmeChallenge, AcmeConfig};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RevocationReason,
    RevocationRequest,
};
use rustls::pki_types::{CertificateDer, Der};
use serde::{Deserialize, Serialize};

use crate::certificate::Facts;
use crate::challenge::{Answer, Answers};
use crate::file_client::FileClient;
use crate::files::is_usable;
use crate::http_client::{Client, RequestError};
use crate::process::now_s;
use crate::schedule::Window;

/// Time for the authority to check the answers, and again to issue the certificate.
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);
/// Time between two questions about an order, at first and at most.
const POLL_MIN: Duration = Duration::from_millis(500);
const POLL_MAX: Duration = Duration::from_secs(5);
/// A longer `Retry-After` is not believed.
const WAIT_MAX_S: u64 = 7 * 86_400;
const REVOKED: &str = "urn:ietf:params:acme:error:alreadyRevoked";
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// What could not be done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// The authority wants no further request before this time.
    pub(crate) wait_until_s: u64,
    has_account: bool,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::new(why)
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl Failure {
    pub(crate) fn new(why: String) -> Failure {
        Failure {
            why,
            wait_until_s: 0,
            has_account: true,
        }
    }
}

/// An account as it is stored.
#[derive(Serialize, Deserialize)]
struct Kept {
    directory: String,
    contact: Option<String>,
    credentials: AccountCredentials,
}

/// The answer to "when should this be renewed?".
pub(crate) struct Advice {
    /// `None` if the authority has no advice.
    pub(crate) window: Option<Window>,
    /// When to ask again.
    pub(crate) ask_again_s: u64,
}

/// The authority, with our account.
pub(crate) struct Authority<'c> {
    config: &'c AcmeConfig,
    files: &'c FileClient<'c>,
    client: Client,
    account: Account,
}

impl<'c> Authority<'c> {
    /// Loads the account, or creates it.
    pub(crate) fn connect(
        config: &'c AcmeConfig,
        files: &'c FileClient<'c>,
    ) -> Result<Authority<'c>, Failure> {
        let client = Client::new(config.authority.as_deref().map(Path::new))?;
        let kept = files.account_as::<Kept>()?;
        let kept = kept.filter(|kept| kept.directory == config.directory);
        let account = match kept {
            Some(kept) => loaded(&client, config, files, kept)?,
            None => created(&client, config, files)?,
        };
        Ok(Authority {
            config,
            files,
            client,
            account,
        })
    }

    /// Loads the account, which has to be there.
    pub(crate) fn connect_again(
        config: &'c AcmeConfig,
        files: &'c FileClient<'c>,
    ) -> Result<Authority<'c>, Failure> {
        let kept = files.account_as::<Kept>()?;
        match kept.is_some_and(|kept| kept.directory == config.directory) {
            true => Authority::connect(config, files),
            false => Err(Failure::new(format!(
                "there is no account at {} in {}",
                config.directory,
                config.base().display()
            ))),
        }
    }

    /// Revokes a certificate (RFC 8555, 7.6), with the key of the account.
    pub(crate) fn revoke(
        &self,
        certificate: &CertificateDer<'_>,
        reason: RevocationReason,
    ) -> Result<(), Failure> {
        let reason = Some(reason);
        let request = RevocationRequest {
            certificate,
            reason,
        };
        match complete(self.account.revoke(&request)) {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(REVOKED) => Ok(()),
            done => done.map_err(|error| failure(&self.client, "revokeCert", &error)),
        }
    }

    /// Asks when a certificate should be renewed (RFC 9773).
    pub(crate) fn advice(&self, facts: &Facts) -> Result<Advice, Failure> {
        const WITHOUT_ADVICE_S: u64 = 86_400;
        let none = Advice {
            window: None,
            ask_again_s: now_s() + WITHOUT_ADVICE_S,
        };
        let Some(identifier) = identifier(facts) else {
            return Ok(none);
        };
        let (info, wait) = match complete(self.account.renewal_info(&identifier)) {
            Ok(found) => found,
            Err(Error::Unsupported(_)) => return Ok(none),
            Err(error) => return Err(failure(&self.client, "renewalInfo", &error)),
        };
        let unix = |time: i64| u64::try_from(time).unwrap_or(0);
        // RFC 9773, 4.3.2: limits for what an authority may ask for.
        let wait_s = wait.as_secs().clamp(60, WITHOUT_ADVICE_S);
        Ok(Advice {
            window: Some(Window {
                start_s: unix(info.suggested_window.start.unix_timestamp()),
                end_s: unix(info.suggested_window.end.unix_timestamp()),
            }),
            ask_again_s: now_s() + wait_s,
        })
    }

    /// Orders a certificate for a name, and keeps it. `before` is the one that it replaces.
    pub(crate) fn issue(
        &mut self,
        host: &str,
        before: Option<&Facts>,
        answers: &Answers<'_>,
    ) -> Result<(), Failure> {
        let done = self.try_issue(host, before, answers);
        match done {
            // The authority has forgotten it, as one for tests does when it is restarted.
            Err(failure) if !failure.has_account => {
                self.account = created(&self.client, self.config, self.files)?;
                self.try_issue(host, before, answers)
            }
            done => done,
        }
    }

    fn try_issue(
        &self,
        host: &str,
        before: Option<&Facts>,
        answers: &Answers<'_>,
    ) -> Result<(), Failure> {
        let mut order = self.new_order(host, before)?;
        let given = self.answer_challenges(host, &mut order, answers)?;
        self.wait_until_ready(&mut order)?;
        drop(given);
        let key = complete(order.finalize());
        let key = key.map_err(|error| failure(&self.client, "finalize", &error))?;
        let chain = self.certificate(&mut order)?;
        if !is_usable(format!("{key}{chain}").as_bytes()) {
            return Err(Failure::new(
                "the authority sent a certificate for another key".into(),
            ));
        }
        let url = &self.config.directory;
        Ok(self.files.set_certificate(host, url, (key, chain))?)
    }

    fn new_order(&self, host: &str, before: Option<&Facts>) -> Result<Order, Failure> {
        let names = [Identifier::Dns(host.to_owned())];
        let replaced = before.and_then(identifier);
        if let Some(replaced) = replaced {
            // It exempts a renewal from limits. If the authority does not accept it, for example because the
            // certificate has been replaced already, the order is made without it.
            if let Ok(order) = complete(
                self.account
                    .new_order(&NewOrder::new(&names).replaces(replaced)),
            ) {
                return Ok(order);
            }
        }
        let order = complete(self.account.new_order(&NewOrder::new(&names)));
        order.map_err(|error| failure(&self.client, "newOrder", &error))
    }

    /// Stores the answers where the authority can get them, and notifies the authority.
    fn answer_challenges<'a>(
        &self,
        host: &str,
        order: &mut Order,
        answers: &'a Answers<'_>,
    ) -> Result<Vec<Answer<'a>>, Failure> {
        let failed = |error: Error| failure(&self.client, "challenge", &error);
        let mut given = Vec::new();
        let mut all = order.authorizations();
        while let Some(authorization) = complete(all.next()) {
            let mut authorization = authorization.map_err(failed)?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let kind = match self.config.challenge {
                AcmeChallenge::Http01 => ChallengeType::Http01,
                AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let Some(mut challenge) = authorization.challenge(kind) else {
                return Err(Failure::new(format!(
                    "the authority does not offer the challenge {}; set another acme-challenge",
                    self.config.challenge
                )));
            };
            let text = challenge.key_authorization();
            given.push(match self.config.challenge {
                AcmeChallenge::Http01 => answers.by_file(&challenge.token, text.as_str())?,
                AcmeChallenge::TlsAlpn01 => answers.by_handshake(host, text.digest().as_ref())?,
            });
            complete(challenge.set_ready()).map_err(failed)?;
        }
        Ok(given)
    }

    fn wait_until_ready(&self, order: &mut Order) -> Result<(), Failure> {
        let mut patience = Patience::new();
        loop {
            let state = complete(order.refresh());
            let state = state.map_err(|error| failure(&self.client, "order", &error))?;
            match state.status {
                OrderStatus::Ready | OrderStatus::Valid | OrderStatus::Processing => return Ok(()),
                OrderStatus::Pending => {
                    patience.wait(&self.client, "has not checked the answer")?
                }
                OrderStatus::Invalid => break,
            }
        }
        let why = refusal(order).unwrap_or_else(|| "the order is invalid".into());
        Err(Failure::new(why))
    }

    fn certificate(&self, order: &mut Order) -> Result<String, Failure> {
        let mut patience = Patience::new();
        loop {
            let chain = complete(order.certificate());
            match chain.map_err(|error| failure(&self.client, "certificate", &error))? {
                Some(chain) => return Ok(chain),
                None => patience.wait(&self.client, "has issued no certificate")?,
            }
        }
    }
}

/// Waits between questions, longer each time.
struct Patience {
    next: Duration,
    until: Instant,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            next: POLL_MIN,
            until: Instant::now() + ORDER_TIMEOUT,
        }
    }

    fn wait(&mut self, client: &Client, what: &str) -> Result<(), Failure> {
        if self.until <= Instant::now() {
            let timeout_s = ORDER_TIMEOUT.as_secs();
            return Err(Failure::new(format!(
                "the authority {what} after {timeout_s} s"
            )));
        }
        let wanted_s = wait_until_s(client).saturating_sub(now_s());
        let wait = self.next.max(Duration::from_secs(wanted_s)).min(POLL_MAX);
        thread::sleep(wait);
        self.next = (self.next * 2).min(POLL_MAX);
        Ok(())
    }
}

fn loaded(
    client: &Client,
    config: &AcmeConfig,
    files: &FileClient<'_>,
    mut kept: Kept,
) -> Result<Account, Failure> {
    // Credentials can be used once, and are not for copying.
    let text = serde_json::to_string(&kept.credentials);
    let text = text.map_err(|error| Failure::new(error.to_string()))?;
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let account = complete(builder.from_credentials(kept.credentials));
    let account = account.map_err(|error| failure(client, &config.directory, &error))?;
    if kept.contact != config.contact {
        let contact: Vec<&str> = config.contact.as_deref().into_iter().collect();
        let updated = complete(account.update_contacts(&contact));
        updated.map_err(|error| failure(client, "contact", &error))?;
        kept = Kept {
            contact: config.contact.clone(),
            credentials: serde_json::from_str(&text)
                .map_err(|error| Failure::new(error.to_string()))?,
            directory: kept.directory,
        };
        files.set_account(&kept)?;
    }
    Ok(account)
}

fn created(
    client: &Client,
    config: &AcmeConfig,
    files: &FileClient<'_>,
) -> Result<Account, Failure> {
    let contact: Vec<&str> = config.contact.as_deref().into_iter().collect();
    let wanted = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let made = complete(builder.create(&wanted, config.directory.clone(), None));
    let (account, credentials) =
        made.map_err(|error| failure(client, &config.directory, &error))?;
    files.set_account(&Kept {
        directory: config.directory.clone(),
        contact: config.contact.clone(),
        credentials,
    })?;
    Ok(account)
}

/// What an authority calls a certificate.
fn identifier(facts: &Facts) -> Option<CertificateIdentifier<'static>> {
    let key = facts.authority_key.as_deref()?;
    let (key, serial) = (Der::from_slice(key), Der::from_slice(&facts.serial));
    Some(CertificateIdentifier::new(key, serial).into_owned())
}

/// Why the authority has refused: what it found when it looked at an answer.
fn refusal(order: &mut Order) -> Option<String> {
    let mut all = order.authorizations();
    while let Some(Ok(mut authorization)) = complete(all.next()) {
        let Ok(state) = complete(authorization.refresh()) else {
            continue;
        };
        let mut found = state.challenges.iter().filter_map(|one| one.error.as_ref());
        if let Some(problem) = found.next() {
            return Some(said(problem));
        }
    }
    None
}

fn failure(client: &Client, what: &str, error: &Error) -> Failure {
    let why = match error {
        Error::Api(problem) => said(problem),
        Error::Other(other) => other.to_string(),
        other => format!("{what}: {other}"),
    };
    Failure {
        why,
        wait_until_s: wait_until_s(client),
        has_account: !matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(NO_ACCOUNT)),
    }
}

/// The message of the authority.
fn said(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    let kind = kind.rsplit(':').next().unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no detail");
    let parts = problem
        .subproblems
        .iter()
        .filter_map(|part| part.detail.as_deref());
    let parts: String = parts.map(|part| format!("; {part}")).collect();
    format!("the authority says {kind}: {detail}{parts}")
}

/// The time until which the last response asks to wait.
fn wait_until_s(client: &Client) -> u64 {
    let Some(text) = client.take_retry_after() else {
        return 0;
    };
    let now_s = now_s();
    let until_s = match u64::from_str(text.trim()) {
        Ok(seconds) => now_s.saturating_add(seconds),
        Err(_) => headway_http::date::parse(text.as_bytes())
            .map_or(0, |at| u64::try_from(at).unwrap_or(0)),
    };
    until_s.min(now_s + WAIT_MAX_S)
}

/// Runs a future which never waits for another one: the client waits inside it.
fn complete<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the client returns only with a response"),
    }
}
