import { existsSync } from 'node:fs'
import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { linkFile, MACHINE_NAME } from './link-records.ts'
import { linkRoutes } from './link-routes.ts'
import type { Links } from './link-service.ts'

export default definePlugin({
  name: 'link',
  api: 1,
  description:
    'Other computers of the same people, linked by a code ("corral link"), answer for this one and it for them',
  optional: true,
  needs: ['cluster'],
  options: Type.Object(
    {
      name: Type.String({
        default: '',
        pattern: `^$|${MACHINE_NAME}`,
        title: 'a name of at most 64 letters, digits and . _ -',
        description: "This machine's name for others; the host name if empty"
      }),
      port: Type.Integer({
        default: 11_436,
        minimum: 0,
        maximum: 65_535,
        description: 'Port for linked machines, which use TLS with pinned certificates; 0 uses any free port'
      }),
      discovery: Type.Boolean({
        default: true,
        description: 'Whether machines find each other in the network (multicast DNS); only while some are linked'
      })
    },
    { additionalProperties: false, restart: true, needsTrust: true }
  ),
  setup(context, options) {
    const { log, paths, signal } = context
    const cluster = context.service('cluster')
    let app: FastifyInstance
    let links: Promise<Links> | undefined
    const open = () => {
      links ??= import('./link-service.ts').then(({ openLinks }) =>
        openLinks({ app, home: paths.home, options, cluster, ended: signal, log })
      )
      return links
    }
    return {
      routes: async instance => {
        app = instance
        instance.addHook('preClose', async () => await (await links)?.stopAccepting())
        instance.addHook('onClose', async () => await (await links)?.closed())
        linkRoutes(instance, open)
      },
      async start() {
        if (existsSync(linkFile(paths.home))) await open()
      }
    }
  }
})
