import { createHash } from 'node:crypto'
import { definePlugin, type Hub, type PluginContext } from 'corral/plugin'

/** Models that a web server has as `<address>/<owner>/<name>/model.gguf`. Put your own listing into `repository`. */
function createHub(context: Pick<PluginContext, 'error'>, address: string): Hub {
  return {
    name: 'web-hub',
    title: 'A web server',
    prefixes: ['web-hub:'],
    async repository({ id }, { signal }) {
      const url = `${address}/${id}/model.gguf`
      const reply = await fetch(url, { method: 'HEAD', ...(signal && { signal }) }).catch(() => undefined)
      signal?.throwIfAborted()
      if (!reply) throw context.error('hub_unreachable', `${address} cannot be reached. Try again later.`)
      if (reply.status === 401 || reply.status === 403) {
        throw context.error('hub_forbidden', `${address} refuses access to ${id}. Ask its owner for access.`)
      }
      if (reply.status === 404) throw context.error('repo_not_found', `There is no model ${id} at ${address}.`)
      if (!reply.ok) throw context.error('hub_unreachable', `${address} answered ${reply.status}. Try again later.`)
      const size = Number(reply.headers.get('content-length'))
      const revision = createHash('sha256')
        .update(`${size} ${reply.headers.get('etag') ?? ''}`)
        .digest('hex')
      return { hub: 'web-hub', id, revision, address: url, gated: false, files: [{ path: 'model.gguf', size }] }
    },
    async locate({ id, revision }, { path, size }) {
      const place = { url: `${address}/${id}/${path}`, headers: {}, identity: revision }
      return size === undefined ? place : { ...place, size }
    }
  }
}

export default definePlugin<{ address: string }>({
  name: 'web-hub',
  api: 1,
  description: 'Models from a web server (web-hub:owner/name)',
  optional: true,
  needs: ['downloads'],
  options: {
    type: 'object',
    properties: { address: { type: 'string', default: 'http://127.0.0.1:8000', description: 'Address of the models' } },
    additionalProperties: false
  },
  setup(context, { address }) {
    context.service('downloads').addHub(createHub(context, address))
    return {}
  }
})
