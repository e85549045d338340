import type { FastifyInstance } from 'fastify'
import { ReloadReportSchema } from '../../../core/contracts/native-records.ts'
import { json, nativeRoute } from '../../../core/http/response-schemas.ts'

const reload = nativeRoute('Server', 'reloadConfig', 'Reload the configuration', {
  role: 'admin',
  description:
    'Changes take effect immediately: running answers continue, and models whose settings did not change stay loaded. Settings that need a restart of the server are listed. An invalid configuration changes nothing: `invalid_config` lists its mistakes in `problems`, with line and column.',
  response: { 200: json('What has changed', ReloadReportSchema) },
  errors: ['invalid_config', 'reload_failed', 'not_implemented']
})

export async function reloadRoute(app: FastifyInstance): Promise<void> {
  app.post('/reload', reload, () => app.reloadConfig())
}
