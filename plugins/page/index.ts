import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { Bytes, Path } from '../../core/config/core-schema.ts'
import { CorralError } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseBytes } from '../../core/system/bytes.ts'
import { PageFiles } from './page-files.ts'

const PATH_PATTERN = '^/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)?$'

/** Routes for everybody, which the API document leaves out. */
const OPEN = { config: { role: 'anyone' }, schema: { hide: true } } as const

export default definePlugin({
  name: 'web',
  api: 1,
  description: 'The web page: chat, models and server state',
  optional: true,
  offers: ['web'],
  options: Type.Object(
    {
      path: Type.String({
        default: '/',
        pattern: PATH_PATTERN,
        title: 'a path such as / or /chat',
        description: 'Path of the page',
        restart: true
      }),
      conversations: Type.Enum(['browser', 'server'], {
        default: 'browser',
        description: 'Where the page stores conversations: in each browser, or on the server for each key'
      }),
      conversations_folder: Path({
        default: '',
        restart: true,
        needsTrust: true,
        description:
          'Folder of conversations on the server, which several servers with the same keys may share; empty is in the data directory'
      }),
      offline: Type.Boolean({
        default: true,
        description: 'Whether browsers keep the page, to show stored chats while the server is away'
      }),
      conversation_count: Type.Integer({
        default: 2000,
        minimum: 1,
        maximum: 100_000,
        description: 'Maximum number of conversations stored per key'
      }),
      conversation_bytes: Bytes({ default: '256MiB', description: 'Maximum size of the conversations stored per key' })
    },
    { additionalProperties: false }
  ),
  setup(_context, options) {
    const { path } = options
    let now = options
    const conversations = () => ({
      place: now.conversations,
      folder: options.conversations_folder,
      count: now.conversation_count,
      bytes: parseBytes(now.conversation_bytes)!
    })
    // Relative paths, so that a proxy may put the page and the API below a path of its own.
    const name = path.slice(path.lastIndexOf('/') + 1)
    const depth = path.split('/').length - 2
    const files = new PageFiles(depth === 0 ? './' : '../'.repeat(depth), name ? `./${name}/page/` : './page/')
    const sendPage = (reply: FastifyReply) => files.sendPage(reply, now.conversations, now.offline)
    return {
      services: { web: { path, sendPage, conversations } },
      reload(next: typeof options) {
        now = next
      },
      routes: async app => {
        // At the root, `GET /` also belongs to programs. The native API tells them from browsers.
        if (path !== '/') app.get(path, OPEN, async (_request, reply) => sendPage(reply))
        const folder = `${path === '/' ? '' : path}/page`
        const fromFolder = name ? `../../${name}` : '../'
        app.get(`${folder}/manifest.webmanifest`, OPEN, async (_request, reply) =>
          reply.type('application/manifest+json').send(files.manifest(fromFolder))
        )
        app.get(`${folder}/service-worker.js`, OPEN, async (_request, reply) => {
          if (!now.offline) throw new CorralError('route_not_found', 'Browsers do not keep the page (web.offline).')
          return files.sendWorker(fromFolder, reply)
        })
        app.get<{ Params: { file: string } }>(`${folder}/:file`, OPEN, async (request, reply) =>
          files.sendFile(request.params.file, reply)
        )
      }
    }
  }
})
