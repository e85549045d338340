import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugins/plugin.ts'
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
          'Address of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; empty is OTEL_EXPORTER_OTLP_ENDPOINT, and without that nothing is traced'
      }),
      ratio: Type.Number({
        default: 1,
        minimum: 0,
        maximum: 1,
        description: 'Share of requests that are traced; those with a traceparent are where their caller traces them'
      })
    },
    { additionalProperties: false, restart: true }
  ),
  async setup({ log }, options) {
    const endpoint = options.endpoint || process.env.OTEL_EXPORTER_OTLP_ENDPOINT
    if (!endpoint) return {}
    // Some megabytes of JavaScript, only for those who want them.
    const { traceRequests } = await import('./request-spans.ts')
    let spans: RequestSpans
    return {
      hooks: async app => {
        spans = traceRequests(app, { endpoint, ratio: options.ratio, log })
      },
      stop: () => spans?.close()
    }
  }
})
