//! A connection of any kind that a route makes: bytes in both directions, and its end.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, tcp};

use super::kernel;
use super::kernel::KernelFacts;

type Reader = Box<dyn AsyncRead + Send + Sync + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Sync + Unpin>;

pub enum Duplex {
    Tcp(TcpStream),
    Piped(Piped),
}

/// Two pipes, for example to another process.
pub struct Piped {
    reader: Reader,
    writer: Writer,
    /// Dropped after the pipes: the owner of the connection, such as the process.
    _kept: Box<dyn Any + Send + Sync>,
}

impl Piped {
    pub fn new(
        reader: impl AsyncRead + Send + Sync + Unpin + 'static,
        writer: impl AsyncWrite + Send + Sync + Unpin + 'static,
        kept: impl Any + Send + Sync,
    ) -> Piped {
        Piped {
            reader: Box::new(reader),
            writer: Box::new(writer),
            _kept: Box::new(kept),
        }
    }
}

pub enum ReadLink<'a> {
    Tcp(tcp::ReadHalf<'a>),
    Piped(&'a mut Reader),
}

pub enum WriteLink<'a> {
    Tcp(tcp::WriteHalf<'a>),
    Piped(&'a mut Writer),
}

impl Duplex {
    pub fn split(&mut self) -> (ReadLink<'_>, WriteLink<'_>) {
        match self {
            Duplex::Tcp(socket) => {
                let (reader, writer) = socket.split();
                (ReadLink::Tcp(reader), WriteLink::Tcp(writer))
            }
            Duplex::Piped(Piped { reader, writer, .. }) => {
                (ReadLink::Piped(reader), WriteLink::Piped(writer))
            }
        }
    }
}

impl ReadLink<'_> {
    /// The kernel's facts; None if this is not a TCP connection.
    pub fn kernel(&self) -> Option<KernelFacts> {
        match self {
            ReadLink::Tcp(reader) => kernel::facts(reader.as_ref()),
            ReadLink::Piped(_) => None,
        }
    }

    /// Sets the congestion control. Does nothing if this is not a TCP connection.
    ///
    /// # Errors
    /// If this host has no congestion control of this name, or this user may not choose it.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        match self {
            ReadLink::Tcp(reader) => kernel::set_congestion(reader.as_ref(), name),
            ReadLink::Piped(_) => Ok(()),
        }
    }

    /// Limits the rate. Does nothing if this is not a TCP connection.
    ///
    /// # Errors
    /// If the kernel cannot pace.
    pub fn set_pace(&self, bytes_per_s: u64) -> io::Result<()> {
        match self {
            ReadLink::Tcp(reader) => kernel::set_pace(reader.as_ref(), bytes_per_s),
            ReadLink::Piped(_) => Ok(()),
        }
    }

    /// Bounds unsent bytes, see [`KernelFacts::unsent_max`].
    pub fn bound_unsent(&self, bytes: u32) {
        if let ReadLink::Tcp(reader) = self {
            kernel::bound_unsent(reader.as_ref(), bytes);
        }
    }
}

impl WriteLink<'_> {
    /// The kernel's facts; None if this is not a TCP connection.
    pub fn kernel(&self) -> Option<KernelFacts> {
        match self {
            WriteLink::Tcp(writer) => kernel::facts(writer.as_ref()),
            WriteLink::Piped(_) => None,
        }
    }

    /// Ends the sending direction. The kernel delivers all written bytes, even if the connection
    /// is dropped afterwards.
    pub async fn finish(&mut self) -> io::Result<()> {
        match self {
            WriteLink::Tcp(writer) => {
                linger(writer.as_ref())?;
                writer.shutdown().await
            }
            WriteLink::Piped(writer) => writer.shutdown().await,
        }
    }
}

/// Makes the kernel deliver all written bytes even if the connection is dropped now.
fn linger(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

macro_rules! reads {
    ($name:ty, $pipe:ident => $end:expr) => {
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(reader) => Pin::new(reader).poll_read(cx, buf),
                    Self::Piped($pipe) => Pin::new($end).poll_read(cx, buf),
                }
            }
        }
    };
}

macro_rules! writes {
    ($name:ty, $pipe:ident => $end:expr) => {
        impl AsyncWrite for $name {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Tcp(writer) => Pin::new(writer).poll_write(cx, bytes),
                    Self::Piped($pipe) => Pin::new($end).poll_write(cx, bytes),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(writer) => Pin::new(writer).poll_flush(cx),
                    Self::Piped($pipe) => Pin::new($end).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(writer) => Pin::new(writer).poll_shutdown(cx),
                    Self::Piped($pipe) => Pin::new($end).poll_shutdown(cx),
                }
            }
        }
    };
}

reads!(Duplex, pipe => &mut pipe.reader);
reads!(ReadLink<'_>, reader => &mut **reader);
writes!(Duplex, pipe => &mut pipe.writer);
writes!(WriteLink<'_>, writer => &mut **writer);
