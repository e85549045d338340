import { readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { RequestSpans } from './request-spans.ts'

export default definePlugin({
  name: 'tracing',
  api: 1,
  description: 'Traces of requests to models for OpenTelemetry, without prompts and answers',
  optional: true,
  options: Type.Object(
    {
      endpoint: Type.String({
        default: '',
        pattern: '^(https?://\\S+)?$',
        title: 'an address such as http://127.0.0.1:4318, or nothing',
        needsTrust: true,
        description:
          'Address of an OTLP collector over HTTP, such as http://127.0.0.1:4318; if empty, OTEL_EXPORTER_OTLP_ENDPOINT is used, and without that nothing is traced'
      }),
      ratio: Type.Number({
        default: 1,
        minimum: 0,
        maximum: 1,
        description:
          'Share of requests that are traced; requests with a traceparent follow the decision of their caller'
      })
    },
    { additionalProperties: false, restart: true }
  ),
  async setup({ log }, options) {
    const endpoint = options.endpoint || process.env.OTEL_EXPORTER_OTLP_ENDPOINT
    if (!endpoint) return {}
    const spansModule = await import('./request-spans.ts').catch(error => {
      if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error
      const message = `needs OpenTelemetry's packages, which are not installed. Install them with: ${installCommand()}`
      if (options.endpoint) {
        throw new ConfigError([{ where: 'tracing.endpoint', setting: 'tracing.endpoint', message }])
      }
      // The variable may be set for other programs of this machine.
      log.warn(`Requests are not traced: OTEL_EXPORTER_OTLP_ENDPOINT ${message}`)
    })
    if (!spansModule) return {}
    let spans: RequestSpans
    return {
      hooks: async app => {
        spans = spansModule.traceRequests(app, { endpoint, ratio: options.ratio, log })
      },
      stop: () => spans?.close()
    }
  }
})

function installCommand(): string {
  const { peerDependencies } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'))
  const packages = Object.entries(peerDependencies).map(([name, version]) => `${name}@${version}`)
  const modules = dirname(packageRoot)
  if (basename(modules) !== 'node_modules') return 'npm ci'
  const folder = dirname(modules)
  const target = basename(folder) === 'lib' ? `--global --prefix "${dirname(folder)}"` : `--prefix "${folder}"`
  return `npm install ${target} ${packages.join(' ')}`
}
