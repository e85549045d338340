import type { FastifyInstance, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { Done, Time } from '../../../core/contracts/native-records.ts'
import { CorralError, errorCodes } from '../../../core/errors.ts'
import { Described, Flag, Integer, Loose, Text, Texts, Titled } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { AboutSchema, type Machine, PERMISSIONS, senderOf } from './link-records.ts'
import type { Links } from './link-service.ts'

const MayField = Type.Enum([...PERMISSIONS], {
  description:
    'What it may do here. ask: use models and copy their files; pull: also download, load and unload models; administer: everything'
})

const LinkedMachineSchema = Described('LinkedMachine', 'Another computer of the same people', {
  name: Text('Its name here'),
  id: Text('Derived from its certificate'),
  may: MayField,
  state: Type.Enum(['here', 'absent', 'refused'], {
    description: 'refused: it answers, but is no longer linked to this machine'
  }),
  since: Type.Optional(Time('When this state began')),
  reason: Type.Optional(Text('Why it is absent')),
  address: Type.Optional(Text('Its current address')),
  can_wake: Flag('Whether Wake-on-LAN packets can be sent to it'),
  linked_at: Time()
})

const LinkSchema = Titled('Link', {
  name: Text('The name of this machine for others'),
  port: Integer('Port for linked machines'),
  addresses: Texts('Of this machine'),
  code: Type.Optional(Loose({ expires_at: Time() }, { description: 'Present while this machine shows a code' })),
  machines: Type.Array(LinkedMachineSchema)
})

export type LinkReply = Static<typeof LinkSchema>
export type LinkedMachine = LinkReply['machines'][number]

const PairSchema = Titled('PairStep', {
  begin: Type.Optional(Type.String({ maxLength: 1000 })),
  attempt: Type.Optional(Type.String({ maxLength: 100 })),
  finish: Type.Optional(Type.String({ maxLength: 1000 })),
  sealed: Type.Optional(Type.String({ maxLength: 40_000 }))
})

const params = Type.Object({ name: Text('The name of a linked machine') })

/** @param links opens the links at the first use, since most servers have none */
export function linkRoutes(app: FastifyInstance, links: () => Promise<Links>): void {
  const route = nativeRouter(app, 'Linked machines')

  const recordOf = ({ machines }: Links, machine: Machine) => {
    const { presence, since, reason, url } = machines.presence(machine.id)
    const { name, id, may, macs, linked_at } = machine
    return {
      ...{ name, id, may, state: presence },
      ...(since && { since: since.toISOString() }),
      ...(presence === 'absent' && reason !== '' && { reason }),
      ...(url !== undefined && { address: url }),
      ...{ can_wake: macs.length > 0, linked_at }
    }
  }
  const one = json('The machine', Loose({ machine: LinkedMachineSchema }, { title: 'LinkedMachineReply' }))

  route('GET /api/link', 'getLink', 'Show the linked machines', {
    role: 'operator',
    description: 'Models of reachable machines are listed and answered like local models.',
    response: { 200: json('The machines', LinkSchema) },
    handler: async () => {
      const open = await links()
      const { machine: name, port, addresses } = open.about()
      const code = open.code()
      return {
        ...{ name, port, addresses },
        ...(code && { code: { expires_at: code.expiresAt.toISOString() } }),
        machines: open.store.all().map(machine => recordOf(open, machine))
      }
    }
  })

  route('POST /api/link/code', 'showLinkCode', 'Show a code to link another machine with', {
    role: 'admin',
    description: 'Valid once, for ten minutes and three attempts. Another code replaces it.',
    response: {
      200: json('The code', Titled('LinkCode', { code: Text('Such as K7PM-3XQD'), expires_at: Time() }))
    },
    errors: errorCodes('machine_unreachable'),
    handler: async () => {
      const { code, expiresAt } = await (await links()).showCode()
      return { code, expires_at: expiresAt.toISOString() }
    }
  })

  route('DELETE /api/link/code', 'endLinkCode', 'Cancel the code', {
    role: 'admin',
    response: { 200: json('The code is cancelled', Done('success')) },
    handler: async () => {
      await (await links()).endCode()
      return { status: 'success' as const }
    }
  })

  route('POST /api/link/join', 'joinLink', 'Link this machine to the machine with this code', {
    role: 'admin',
    body: Titled('JoinLink', {
      code: Type.String({ minLength: 1, maxLength: 100 }),
      host: Type.Optional(
        Type.String({
          pattern: '^(\\[[0-9A-Fa-f:.%a-z]+\\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?$',
          title: 'a host name or address, with a port if it is not the usual one',
          description: 'Of the other machine. Without it, the network is searched.'
        })
      )
    }),
    response: { 200: one },
    errors: [...DISK_ERRORS, ...errorCodes('pairing_code_wrong machine_unreachable')],
    handler: async ({ body }) => {
      const open = await links()
      const at = body.host === undefined ? undefined : addressOf(body.host)
      return { machine: recordOf(open, await open.join(body.code, at)) }
    }
  })

  route('PUT /api/link/machines/:name', 'changeLinkedMachine', 'Change what a linked machine may do here', {
    role: 'admin',
    params,
    body: Titled('LinkedMachineChange', { may: MayField }),
    response: { 200: one },
    errors: [...DISK_ERRORS, ...errorCodes('machine_not_found')],
    handler: async ({ params, body }) => {
      const open = await links()
      return { machine: recordOf(open, await open.allow(params.name, body.may)) }
    }
  })

  route('DELETE /api/link/machines/:name', 'removeLinkedMachine', 'Remove a linked machine', {
    role: 'admin',
    description: 'It can no longer use this machine, and this machine no longer uses it. Its models stay there.',
    params,
    response: { 200: json('It is removed', Done('success')) },
    errors: [...DISK_ERRORS, ...errorCodes('machine_not_found')],
    handler: async ({ params }) => {
      await (await links()).remove(params.name)
      return { status: 'success' as const }
    }
  })

  route('POST /api/link/machines/:name/wake', 'wakeLinkedMachine', 'Wake a linked machine', {
    role: 'operator',
    description: 'Sends Wake-on-LAN packets, which it must be set up for. It is listed again when it is awake.',
    params,
    response: { 200: json('The packets were sent', Done('success')) },
    errors: errorCodes('machine_not_found machine_unreachable'),
    handler: async ({ params }) => {
      await (await links()).wake(params.name)
      return { status: 'success' as const }
    }
  })

  /** @throws CorralError `route_not_found` for requests that did not come from another machine's link */
  function requireSender({ raw }: FastifyRequest) {
    const sender = senderOf(raw)
    if (sender) return sender
    const message =
      'This route is only for other corrals, at the port for linked machines. Link machines with: corral link'
    throw new CorralError('route_not_found', message)
  }

  route('POST /api/link/pair', 'pairMachines', 'Prove the code, and exchange certificates', {
    role: 'anyone',
    audited: false,
    description:
      'Other corrals call this at the port for linked machines. It takes the two messages of OPAQUE (RFC 9807).',
    body: PairSchema,
    response: { 200: json('The answer', Loose({}, { title: 'PairAnswer' })) },
    errors: [...DISK_ERRORS, ...errorCodes('pairing_code_wrong route_not_found')],
    handler: async request => {
      requireSender(request)
      const { begin, attempt = '', finish = '', sealed = '' } = request.body
      return await (await links()).answerPair(begin === undefined ? { attempt, finish, sealed } : { begin })
    }
  })

  route('POST /api/link/hello', 'greetMachine', 'Exchange addresses with a linked machine', {
    role: 'operator',
    audited: false,
    description: 'Other corrals call this at the port for linked machines.',
    body: AboutSchema,
    response: { 200: json('The addresses of this machine', AboutSchema) },
    errors: errorCodes('route_not_found'),
    handler: async request => {
      const sender = requireSender(request)
      const open = await links()
      if (sender !== 'stranger') {
        const { port, addresses } = request.body
        await open.machines.told(sender.id, [request.caller.address.replace(/^::ffff:/, ''), ...addresses], port)
      }
      return open.about()
    }
  })
}

const DEFAULT_PORT = 11_436

/** @throws CorralError `invalid_request` for an impossible port */
function addressOf(text: string) {
  const [, bracketed, plain, digits] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(text) ?? []
  const port = digits === undefined ? DEFAULT_PORT : Number(digits)
  if (port >= 1 && port <= 65_535) return { addresses: [bracketed ?? plain!], port }
  throw new CorralError('invalid_request', `${port} is not a port. Use a number from 1 to 65535.`, { param: 'host' })
}
