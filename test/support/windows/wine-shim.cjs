// Wine 8 does not know TCP_KEEPIDLE, for which undici asks on every connection. libuv then fails the connection (UNKNOWN).
const { Socket } = require('node:net')
Socket.prototype.setKeepAlive = function () {
  return this
}
