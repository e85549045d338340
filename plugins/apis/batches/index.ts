import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { Bytes, Count, Path } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { Batches, type BatchLimits } from './batches.ts'
import { batchRoutes } from './routes.ts'
import { type FileLimits, UserFiles } from './user-files.ts'

const DAY = 24 * 3_600_000

const Section = Type.Object({
  folder: Path({
    default: '',
    restart: true,
    needsTrust: true,
    description:
      'Folder of files and batches, which several servers with the same keys may share; empty is in the data directory'
  }),
  file_size: Bytes({ default: '200MiB', description: 'Maximum size of a file' }),
  files: Count(1000, 1, { description: 'Maximum number of files per owner, including results …' }),
  bytes: Bytes({ default: '4GiB', description: '… and their maximum total size' }),
  lines: Count(50_000, 1, { description: 'Maximum number of requests in a batch' }),
  line_size: Bytes({ default: '4MiB', description: 'Maximum length of a line in a batch' }),
  batches: Count(200, 1, {
    description: 'Maximum number of batches stored per owner; a new one replaces the oldest finished one'
  }),
  running: Count(4, 1, {
    description: 'Batches that run at the same time, at most half of them for one owner; the others wait'
  }),
  parallel: Count(8, 1, { maximum: 256, description: 'Requests of one batch that run at the same time' }),
  keep: Count(30, 1, { maximum: 36_500, description: 'Days that files and batches are stored' })
})

export default definePlugin({
  name: 'api-batches',
  api: 1,
  description: "OpenAI's files and batches: /v1/files and /v1/batches, answered while no client needs the models",
  optional: true,
  needs: ['access', 'scheduler'],
  offers: ['userFiles'],
  options: Section,
  async setup(context, options) {
    const { config, log, paths } = context
    let limits = readLimits(options)
    const isShared = options.folder !== ''
    const folder = isShared ? options.folder : join(paths.home, 'batches')
    const files = new UserFiles(join(folder, 'files'), () => limits, log)
    const batches = new Batches({
      folder,
      isShared,
      files,
      access: context.service('access'),
      limits: () => ({ ...limits, depth: config.limits.body_depth }),
      log
    })
    await batches.load()
    await files.load(id => batches.needs(id), isShared)
    let server: FastifyInstance | undefined
    return {
      services: { userFiles: files },
      routes: async app => {
        server = app
        const stall = () => parseDuration(config.limits.upload_stall)!
        await app.register(api => batchRoutes(api, files, batches, stall), { prefix: '/v1' })
      },
      start() {
        batches.start(server!)
        // Requests that are waiting for a model are sent again after the next start.
        context.signal.addEventListener('abort', () => void batches.close())
      },
      reload(next: typeof options) {
        limits = readLimits(next)
      },
      stop: () => batches.close()
    }
  }
})

function readLimits(section: Static<typeof Section>): FileLimits & Omit<BatchLimits, 'depth'> {
  const { file_size, line_size, bytes, keep, ...counts } = section
  return {
    ...counts,
    fileSize: parseBytes(file_size)!,
    lineSize: parseBytes(line_size)!,
    bytes: parseBytes(bytes)!,
    keep: keep * DAY
  }
}
