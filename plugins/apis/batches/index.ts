import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { Bytes } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { Batches, type BatchLimits } from './batches.ts'
import { batchRoutes } from './routes.ts'
import { type FileLimits, UserFiles } from './user-files.ts'

const DAY = 24 * 3_600_000

const Section = Type.Object(
  {
    file_size: Bytes({ default: '200MiB', description: 'Largest file that is taken' }),
    files: Type.Integer({ default: 1000, minimum: 1, description: 'Most files of one owner, results included …' }),
    bytes: Bytes({ default: '4GiB', description: '… and their size together, above which no more are taken' }),
    lines: Type.Integer({ default: 50_000, minimum: 1, description: 'Most requests of a batch' }),
    line_size: Bytes({ default: '4MiB', description: 'Longest line of a batch' }),
    batches: Type.Integer({
      default: 200,
      minimum: 1,
      description: 'Most batches of one owner that are kept; the oldest that has ended goes for a new one'
    }),
    running: Type.Integer({
      default: 4,
      minimum: 1,
      description: 'Batches that are worked on at once, half of them for one owner at most; others wait'
    }),
    parallel: Type.Integer({
      default: 8,
      minimum: 1,
      maximum: 256,
      description: 'Lines of each that are asked at once'
    }),
    keep: Type.Integer({
      default: 30,
      minimum: 1,
      maximum: 36_500,
      description: 'Days that files and batches are kept'
    })
  },
  { additionalProperties: false }
)

export default definePlugin({
  name: 'api-batches',
  api: 1,
  description: "OpenAI's files and batches: /v1/files and /v1/batches, answered while nobody else wants the models",
  optional: true,
  needs: ['access', 'scheduler'],
  options: Section,
  async setup(context, options) {
    const { config, log, paths } = context
    let limits = limitsOf(options)
    const folder = join(paths.home, 'batches')
    const files = new UserFiles(join(folder, 'files'), () => limits, log)
    const batches = new Batches({
      folder,
      files,
      access: context.service('access'),
      limits: () => ({ ...limits, depth: config.limits.body_depth }),
      log
    })
    await batches.load()
    await files.load(id => batches.needs(id))
    let server: FastifyInstance | undefined
    return {
      routes: async app => {
        server = app
        await app.register(batchRoutes({ files, batches, stall: () => parseDuration(config.limits.upload_stall)! }), {
          prefix: '/v1'
        })
      },
      start() {
        batches.start(server!)
        // Those that wait for an answer of a model are asked again after the next start.
        context.signal.addEventListener('abort', () => void batches.close())
      },
      reload(next: typeof options) {
        limits = limitsOf(next)
      },
      stop: () => batches.close()
    }
  }
})

function limitsOf(section: Static<typeof Section>): FileLimits & Omit<BatchLimits, 'depth'> {
  const { file_size, line_size, bytes, keep, ...counts } = section
  return {
    ...counts,
    fileSize: parseBytes(file_size)!,
    lineSize: parseBytes(line_size)!,
    bytes: parseBytes(bytes)!,
    keep: keep * DAY
  }
}
