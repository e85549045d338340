import type { IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import {
  type AdditionalListener,
  LISTEN_PATTERN,
  openConfiguredListener,
  readListen
} from '../../../core/http/listening.ts'
import { nativeRoute } from '../../../core/http/response-schemas.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { freeSpace } from '../../../core/system/disk-space.ts'

const PATH = '/metrics'
const LISTEN = { setting: 'metrics.listen', served: 'Metrics are', path: PATH, example: 9464 }

const route = (isPublic: boolean) =>
  nativeRoute('Server', 'getMetrics', 'Metrics for Prometheus', {
    role: isPublic ? 'anyone' : 'operator',
    description: 'In the Prometheus text format 0.0.4. docs/monitoring.md lists the metrics.',
    response: { 200: { description: 'The metrics', content: { 'text/plain': { schema: Type.String() } } } }
  })

export default definePlugin({
  name: 'metrics',
  api: 1,
  description: 'Metrics for Prometheus, under /metrics and optionally at a separate address',
  optional: true,
  needs: ['access', 'catalog', 'engines', 'scheduler', 'downloads', 'conversion'],
  options: Type.Object(
    {
      listen: Type.String({
        default: '',
        pattern: LISTEN_PATTERN,
        title: 'an address with a port such as 127.0.0.1:9464',
        description:
          'Separate address for /metrics, such as 127.0.0.1:9464, where local programs need no key; empty for none'
      }),
      public: Type.Boolean({
        default: false,
        description:
          'Whether /metrics needs no key, for routers and scrapers that cannot send one; it contains names of models and keys'
      })
    },
    { additionalProperties: false, restart: true, needsTrust: true }
  ),
  async setup(context, options) {
    const { log, paths } = context
    const address = readListen(options.listen, context.config.port, LISTEN)
    const admit = address && context.service('access').admit(address, LISTEN.setting, true)
    const catalog = context.service('catalog')
    const engines = context.service('engines')
    const scheduler = context.service('scheduler')
    const downloads = context.service('downloads')
    const conversion = context.service('conversion')
    // Loaded only when a server starts: commands only read the options of this plugin.
    const [{ createMetrics }, { withMembers }] = await Promise.all([
      import('./metrics.ts'),
      import('./server-metrics.ts')
    ])
    const metrics = createMetrics(async () => {
      const [freeBytes, stored, inUse] = await Promise.all([
        freeSpace(paths.models).catch(() => undefined),
        engines.storedConversations(),
        engines.used().catch(() => ({}))
      ])
      const stats = scheduler.stats()
      const cluster = engines.elsewhere()
      const named = (name: string, mode: EngineMode) => {
        const variant = catalog.find(parseModelName(name))
        return variant && engines.providerOf(variant, mode)?.elsewhere ? variant.publicName : undefined
      }
      return {
        engines: withMembers(stats.engines, cluster, named),
        cluster,
        memory: stats.memory,
        inUse,
        pulls: downloads.list(),
        received: downloads.received(),
        conversions: conversion.counts(),
        stored,
        freeSpace: freeBytes
      }
    })
    /** Requests that came through the separate address. */
    const own = new WeakSet<IncomingMessage>()
    let app: FastifyInstance
    let listener: AdditionalListener | undefined
    return {
      on: metrics.hooks,
      hooks: async instance => {
        instance.onRequestEnd(metrics.observe)
        if (!address) return
        instance.addHook('onRequest', async ({ raw, routeOptions }) => {
          if (!own.has(raw) || routeOptions.url === PATH) return
          throw new CorralError('route_not_found', `This address serves only ${PATH}. Use the server's own address.`)
        })
      },
      routes: async instance => {
        app = instance
        instance.addHook('preClose', async () => listener?.stopAccepting())
        instance.addHook('onClose', async () => await listener?.closed())
        instance.get(PATH, route(options.public), async (_request, reply) =>
          reply
            .type(metrics.contentType)
            .header('cache-control', 'no-store')
            .send(await metrics.text())
        )
      },
      async start() {
        if (!address) return
        listener = await openConfiguredListener(app, address, LISTEN, {
          log,
          ended: context.signal,
          prepare: request => {
            admit?.(request)
            own.add(request)
          }
        })
      }
    }
  }
})
