import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'
import type { FastifyInstance } from 'fastify'
import { encryptConnection, serverContext } from '../../../core/http/certificate.ts'
import { setCaller } from '../../../core/http/internal-request.ts'
import { type AdditionalListener, openListener } from '../../../core/http/listening.ts'
import { clientNetwork } from '../../../core/system/client-network.ts'
import { machineId } from './link-certificate.ts'
import { type Machine, mayRequest, PAIR_PATH, setSender } from './link-records.ts'
import type { LinkStore } from './link-store.ts'

/** A listener for linked machines, which it identifies by their certificates. Other machines can only pair. */
export type LinkDoor = Awaited<ReturnType<typeof openLinkDoor>>

/** @throws the error of listening */
export async function openLinkDoor(
  app: FastifyInstance,
  store: LinkStore,
  { port, ended }: { port: number; ended: AbortSignal }
) {
  const secureContext = serverContext(store.identity.certificate, store.identity.key)
  const open = new Map<Socket, string>()

  function identify(socket: TLSSocket): string {
    const known = open.get(socket)
    if (known !== undefined) return known
    const certificate = socket.getPeerX509Certificate()
    const id = certificate ? machineId(certificate.raw) : ''
    open.set(socket, id)
    socket.once('close', () => open.delete(socket))
    return id
  }

  function prepare(request: IncomingMessage, response: ServerResponse): boolean {
    const socket = request.socket as TLSSocket
    const machine = store.withId(identify(socket))
    const path = request.url?.replace(/\?.*$/s, '') ?? ''
    const address = socket.remoteAddress ?? ''
    const asked = `${request.method} ${path}`
    if (asked === `POST ${PAIR_PATH}`) {
      setSender(request, 'stranger')
      setCaller(request, { role: 'user', owner: 'link', turn: clientNetwork(address), address })
      return true
    }
    if (!machine || !mayRequest(machine.may, asked)) return refuse(request, response, machine)
    setSender(request, machine)
    const owner = `link:${machine.id}`
    const role = machine.may === 'administer' ? 'admin' : 'operator'
    setCaller(request, { role, owner, turn: owner, address, name: machine.name })
    return true
  }

  const encryption = {
    encrypt(raw: Socket, ready: (socket: TLSSocket) => void) {
      // Certificates are self-signed. What counts is which one it is.
      encryptConnection(raw, () => ({ secureContext, requestCert: true, rejectUnauthorized: false }), ready)
    }
  }
  const listen = (host: string): Promise<AdditionalListener> =>
    openListener(app, { host, port }, { prepare, ended, encryption })
  // Systems without IPv6 have only the other one.
  const listener = await listen('::').catch(error => {
    if (error.code !== 'EAFNOSUPPORT' && error.code !== 'EADDRNOTAVAIL') throw error
    return listen('0.0.0.0')
  })
  return {
    port: (listener.address as AddressInfo).port,
    /** Ends the connections of a machine. */
    disconnect(id: string) {
      for (const [socket, other] of open) if (other === id) socket.destroy()
    },
    stopAccepting: () => listener.stopAccepting(),
    /** Resolves when the last connection has ended. */
    closed: () => listener.closed(),
    /** Ends all connections. */
    async close() {
      listener.stopAccepting()
      for (const socket of open.keys()) socket.destroy()
      await listener.closed()
    }
  }
}

function refuse(request: IncomingMessage, response: ServerResponse, machine: Machine | undefined): false {
  const error = machine
    ? `"${machine.name}" may not do this here. Its owner can allow it: corral link allow ${machine.name} <permission>`
    : 'This machine is not linked. Link it with: corral link'
  request.resume()
  response.writeHead(403, { 'content-type': 'application/json', connection: 'close' })
  response.end(JSON.stringify({ error, errorCode: 403, code: 'forbidden_role' }))
  return false
}
