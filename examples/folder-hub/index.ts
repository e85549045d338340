import { createHash, randomUUID } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, relative, sep } from 'node:path'
import { definePlugin, type HubFile, type HubRepository } from 'corral/plugin'

/** Models from a shared folder: `corral pull folder:owner/name` takes the files of `<folder>/owner/name`. */
export default definePlugin<{ folder: string }>({
  name: 'folder-hub',
  api: 1,
  description: 'Models from a shared folder (folder:owner/name)',
  optional: true,
  needs: ['downloads'],
  options: {
    type: 'object',
    properties: {
      folder: { type: 'string', default: '', description: 'Folder with models in folders owner/name; empty for none' }
    },
    additionalProperties: false
  },
  setup(context, { folder }) {
    const key = randomUUID()
    let server: Server | undefined

    async function filesOf(id: string): Promise<HubFile[]> {
      if (folder === '' || !/^[\w-][\w.-]*\/[\w-][\w.-]*$/.test(id)) return []
      const top = join(folder, id)
      const entries = await readdir(top, { recursive: true, withFileTypes: true }).catch(() => [])
      const files = entries.filter(entry => entry.isFile()).map(entry => join(entry.parentPath, entry.name))
      return await Promise.all(
        files.sort().map(async file => {
          return { path: relative(top, file).split(sep).join('/'), size: (await stat(file)).size }
        })
      )
    }

    context.service('downloads').addHub({
      name: 'folder',
      title: 'The shared folder',
      prefixes: ['folder:'],
      async repository({ id }, { signal }): Promise<HubRepository> {
        signal?.throwIfAborted()
        const files = await filesOf(id)
        if (files.length === 0) {
          throw context.error('repo_not_found', `There is no model ${id} in the shared folder. Check its name there.`)
        }
        // Folders have no commits, so the list of files identifies the content.
        const revision = createHash('sha256').update(JSON.stringify(files)).digest('hex')
        return { hub: 'folder', id, revision, address: `folder:${id}`, gated: false, files }
      },
      async locate({ id, revision }, { path, size }) {
        const { port } = server!.address() as AddressInfo
        const url = `http://127.0.0.1:${port}/${[...id.split('/'), ...path.split('/')].map(encodeURIComponent).join('/')}`
        return { url, headers: { authorization: `Bearer ${key}` }, proxy: '', size, identity: `${revision} ${path}` }
      }
    })

    return {
      /** Pulls use HTTP. This server offers the files to pulls, and refuses requests without the key. */
      async start() {
        server = createServer(async (request, response) => {
          const [, owner, name, ...path] = (request.url ?? '').split('/').map(decodeURIComponent)
          const file = (await filesOf(`${owner}/${name}`)).find(one => one.path === path.join('/'))
          if (!file?.size || request.headers.authorization !== `Bearer ${key}`) {
            response.writeHead(404).end()
            return
          }
          const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
          const begin = Number(range?.[1] ?? 0)
          const end = Math.min(Number(range?.[2] || file.size - 1), file.size - 1)
          response.writeHead(range ? 206 : 200, {
            'accept-ranges': 'bytes',
            'content-length': end - begin + 1,
            ...(range && { 'content-range': `bytes ${begin}-${end}/${file.size}` })
          })
          if (request.method === 'HEAD') response.end()
          else createReadStream(join(folder, owner!, name!, file.path), { start: begin, end }).pipe(response)
        })
        await new Promise<void>(resolve => server!.listen(0, '127.0.0.1', resolve))
      },
      async stop() {
        server?.closeAllConnections()
        await new Promise(resolve => (server ? server.close(resolve) : resolve(undefined)))
      }
    }
  }
})
