import { join } from 'node:path'
import { Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { localCounters } from './budgets.ts'
import { RateLimits } from './rate-limits.ts'
import { UsageRecords } from './usage-records.ts'
import { usageRoutes } from './usage-routes.ts'

export default definePlugin({
  name: 'usage',
  api: 1,
  description: 'Usage of models by each key, and limits per minute and per day',
  offers: ['usage'],
  options: Type.Object(
    {
      keep_days: Type.Integer({
        default: 365,
        minimum: 1,
        maximum: 36_500,
        description: 'Days that usage is stored'
      }),
      redis: Type.String({
        default: '',
        pattern: '^(rediss?://\\S+)?$',
        title: 'an address such as redis://10.0.0.7:6379 or rediss://user:password@redis.example.org:6380',
        writeOnly: true,
        restart: true,
        needsTrust: true,
        description: 'Redis or Valkey for counting limits across several servers; empty counts in this server alone'
      })
    },
    { additionalProperties: false }
  ),
  async setup(context, options) {
    let { keep_days: keepDays } = options
    const records = new UsageRecords(join(context.paths.home, 'usage'), () => keepDays, context.log)
    if (options.redis !== '' && !URL.canParse(options.redis)) {
      const message = 'It is not an address. Write one such as redis://10.0.0.7:6379, or leave it empty.'
      throw new ConfigError([{ where: 'usage.redis', setting: 'usage.redis', message }])
    }
    const local = localCounters(records)
    const counters =
      options.redis === ''
        ? local
        : await (await import('./shared-counters.ts')).sharedCounters(options.redis, local, context.log)
    const limits = new RateLimits(() => context.config, records, counters)
    return {
      services: { usage: limits },
      on: limits.hooks,
      hooks: async app => limits.attach(app),
      routes: usageRoutes(records),
      start: () => records.forget(),
      reload: async next => {
        keepDays = next.keep_days
        await records.forget()
      },
      stop: () => limits.close()
    }
  }
})
