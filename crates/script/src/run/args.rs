//! Evaluation of arguments.

use std::net::{IpAddr, SocketAddr};

use fullsend_posix::SockAddr;

use super::ScriptRunner;
use super::settings::Family;
use crate::constants::{constant, errno};
use crate::error::{Pos, ScriptError};
use crate::script::{Expr, ExprKind, Field};

pub(super) type Result<T> = core::result::Result<T, ScriptError>;

/// Returns an error at an argument.
pub(super) fn error_at<T>(pos: Pos, message: impl Into<String>) -> Result<T> {
    Err(ScriptError::new(pos, message))
}

impl Expr {
    pub(super) fn is_any(&self) -> bool {
        self.kind == ExprKind::Any
    }

    /// Returns the fields of a structure.
    pub(super) fn fields(&self) -> Result<&[Field]> {
        match &self.kind {
            ExprKind::Struct(fields) => Ok(fields),
            _ => error_at(self.pos, "expected a structure {...}"),
        }
    }

    /// Returns a field of a structure by its name.
    pub(super) fn field(&self, name: &str) -> Result<Option<&Field>> {
        let fields = self.fields()?;
        Ok(fields.iter().find(|f| f.name.as_deref() == Some(name)))
    }

    /// Returns the items of an array.
    pub(super) fn items(&self) -> Result<&[Expr]> {
        match &self.kind {
            ExprKind::Array(items) => Ok(items),
            _ => error_at(self.pos, "expected an array [...]"),
        }
    }
}

impl ScriptRunner<'_> {
    /// Evaluates a number, a constant, or several of them joined by `|`.
    pub(super) fn int(&self, expr: &Expr) -> Result<i64> {
        match &expr.kind {
            ExprKind::Int(value) => Ok(*value),
            ExprKind::Or(flags) => flags
                .iter()
                .try_fold(0, |all, flag| Ok(all | self.int(flag)?)),
            ExprKind::Word(name) => self.constant_by_name(name).map_or_else(
                || {
                    error_at(
                        expr.pos,
                        format!("`{name}` is not a known constant; write its number"),
                    )
                },
                Ok,
            ),
            ExprKind::Array(items) if items.len() == 1 => self.int(&items[0]),
            ExprKind::Apply(name, args) if name == "htons" && args.len() == 1 => self.int(&args[0]),
            _ => error_at(expr.pos, "expected a number"),
        }
    }

    fn constant_by_name(&self, name: &str) -> Option<i64> {
        let v6 = self.settings.family != Family::V4;
        let name = match name {
            "CMSG_LEVEL_IP" if v6 => "SOL_IPV6",
            "CMSG_LEVEL_IP" => "SOL_IP",
            "CMSG_TYPE_RECVERR" if v6 => "IPV6_RECVERR",
            "CMSG_TYPE_RECVERR" => "IP_RECVERR",
            other => other,
        };
        constant(name).or_else(|| errno(name).map(i64::from))
    }

    /// Evaluates a number that fits in `T`.
    pub(super) fn number<T: TryFrom<i64>>(&self, expr: &Expr) -> Result<T> {
        let value = self.int(expr)?;
        T::try_from(value).or_else(|_| {
            error_at(
                expr.pos,
                format!("{value} is out of range for this argument"),
            )
        })
    }

    /// Evaluates flags: 32 bits, whatever their sign.
    pub(super) fn flags(&self, expr: &Expr) -> Result<i32> {
        Ok(self.int(expr)? as i32)
    }

    /// Evaluates a socket address; `...` is `default`.
    pub(super) fn address(&self, expr: &Expr, default: SocketAddr) -> Result<SockAddr> {
        if expr.is_any() {
            return Ok(self.shown(default));
        }
        if matches!(&expr.kind, ExprKind::Word(name) if name == "AF_UNSPEC") {
            return Ok(SockAddr::Unspec);
        }
        let part = |names: &[&str]| -> Result<Option<&Expr>> {
            let fields = expr.fields()?;
            let named = |f: &&Field| f.name.as_deref().is_some_and(|n| names.contains(&n));
            Ok(fields.iter().find(named).map(|field| &field.value))
        };
        if let Some(family) = part(&["sa_family", "sin_family", "sin6_family"])?
            && self.int(family)? == 0
        {
            return Ok(SockAddr::Unspec);
        }
        let port = match part(&["sin_port", "sin6_port"])? {
            Some(port) => self.number(port)?,
            None => default.port(),
        };
        let ip = match part(&["sin_addr", "sin6_addr"])? {
            Some(addr) => self.ip(addr)?,
            None => default.ip(),
        };
        Ok(self.shown(SocketAddr::new(ip, port)))
    }

    fn ip(&self, expr: &Expr) -> Result<IpAddr> {
        let text = match &expr.kind {
            ExprKind::Apply(_, args) => args.last().map(|arg| &arg.kind),
            kind => Some(kind),
        };
        match text {
            Some(ExprKind::Text(text)) => {
                let text = String::from_utf8_lossy(text);
                text.parse().or_else(|_| {
                    error_at(
                        expr.pos,
                        format!("\"{text}\" is not an address; write e.g. 192.168.0.1"),
                    )
                })
            }
            Some(ExprKind::Word(name)) if name == "INADDR_ANY" => Ok(self.settings.unspecified()),
            _ => error_at(
                expr.pos,
                "expected an address such as inet_addr(\"192.168.0.1\")",
            ),
        }
    }

    /// Returns an address in the form of the run's sockets.
    pub(super) fn shown(&self, addr: SocketAddr) -> SockAddr {
        SockAddr::for_domain(self.domain(), addr)
    }

    pub(super) fn domain(&self) -> i32 {
        let name = match self.settings.family {
            Family::V4 => "AF_INET",
            Family::V6 | Family::Mapped => "AF_INET6",
        };
        constant(name).unwrap_or(0) as i32
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.settings.local, self.settings.bind_port)
    }

    pub(super) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.settings.remote, self.settings.connect_port)
    }
}
