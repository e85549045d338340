import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { loadConfig } from '../../core/config/load.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { corral as command } from '../command-line/command.ts'
import { MANIFESTS, OVERLAYS, parseObjects, podTemplates, readManifest } from './manifests.ts'

/*
 * Checks of the manifests without a cluster and without the schemas: they are consistent, and match corral.
 * schemas.thorough.test.ts checks them against Kubernetes' schemas.
 */

const kustomizations = new Map<string, any>(
  OVERLAYS.map(folder => [folder, parse(readManifest(`${folder}/kustomization.yaml`))])
)
const objects = OVERLAYS.flatMap(folder =>
  kustomizations
    .get(folder)!
    .resources.filter((name: string) => name.endsWith('.yaml'))
    .flatMap((name: string) => parseObjects(readManifest(`${folder}/${name}`)))
)
const named = (kind: string, name: string) =>
  objects.find(object => object.kind === kind && object.metadata.name === name)
const workloads = objects.filter(object => podTemplates(object).length > 0)
const isSubset = (selector: Record<string, string>, labels: Record<string, string> = {}) =>
  Object.entries(selector).every(([key, value]) => labels[key] === value)
/** Labels that KubeRay adds to its pods. */
const getLabels = (object: any, template: any) =>
  object.kind === 'RayCluster' ? { 'ray.io/cluster': object.metadata.name } : template.metadata.labels

t.test('settings in ConfigMaps have no errors', async t => {
  const files = OVERLAYS.flatMap(folder =>
    (kustomizations.get(folder)!.configMapGenerator ?? []).flatMap(({ files }: any) =>
      files
        .map((entry: string) => entry.split('='))
        .filter(([name]: string[]) => name === 'config.yaml')
        .map(([, file]: string[]) => join(MANIFESTS, folder, file!))
    )
  )
  files.push(join(MANIFESTS, 'kuberay', 'config.yaml'))
  t.ok(files.length >= 5, files.join())
  for (const file of files) {
    const { unknown } = await loadConfig({
      flags: { config: file, home: t.testdir() },
      env: { CORRAL_API_KEYS: 'k'.repeat(40) },
      cwd: '/',
      definitions: builtInPlugins
    })
    t.same(unknown, [], file)
  }
  // A server that others can reach needs keys. Pods get them from a Secret.
  const env = { CORRAL_API_KEYS: 'k'.repeat(40) }
  const checked = await command(['config', 'check', '--config', files[0]!], { home: t.testdir(), env })
  t.match(checked, { code: 0 }, 'as the command')
})

t.test('all objects that a manifest names exist', async t => {
  const maps = [...kustomizations.values()].flatMap(({ configMapGenerator = [] }) =>
    configMapGenerator.map(({ name }: any) => name)
  )
  const secretKeys = ['node', 'front', 'redis', 'hf-token']
  const guide = readFileSync(join(packageRoot, 'docs', 'kubernetes.md'), 'utf8')
  for (const workload of workloads) {
    for (const template of podTemplates(workload)) {
      const { containers, volumes = [] } = template.spec
      const provided = [...volumes, ...(workload.spec.volumeClaimTemplates ?? []).map((claim: any) => claim.metadata)]
      for (const { name, ports, env = [], volumeMounts = [], ...container } of containers) {
        const where = `${workload.metadata.name}/${name}`
        for (const mount of volumeMounts) {
          t.ok(
            provided.some(volume => volume.name === mount.name),
            `${where}: the volume ${mount.name}`
          )
        }
        for (const { valueFrom } of env) {
          if (!valueFrom) continue
          const { secretKeyRef } = valueFrom
          t.equal(secretKeyRef.name, 'corral-keys', where)
          t.ok(secretKeys.includes(secretKeyRef.key), `${where}: the key ${secretKeyRef.key}`)
          t.ok(guide.includes(secretKeyRef.key), `docs/kubernetes.md creates ${secretKeyRef.key}`)
        }
        for (const probe of ['startupProbe', 'livenessProbe', 'readinessProbe']) {
          const given = container[probe]
          if (!given) continue
          const { port, path } = given.httpGet ?? given.tcpSocket
          t.ok(
            ports.some((each: any) => each.name === port),
            `${where}: ${probe} uses an existing port`
          )
          if (path) t.ok(['/livez', '/readyz'].includes(path), `${where}: ${path}`)
        }
      }
      for (const { configMap } of volumes) if (configMap) t.ok(maps.includes(configMap.name), configMap.name)
    }
    if (workload.kind === 'RayCluster') continue
    const { labels } = workload.spec.template.metadata
    t.ok(isSubset(workload.spec.selector.matchLabels, labels), `${workload.metadata.name} selects its own pods`)
  }
  for (const object of objects) {
    const { spec = {} } = object
    const selector =
      object.kind === 'Service'
        ? spec.selector
        : ['PodDisruptionBudget', 'InferencePool'].includes(object.kind)
          ? spec.selector.matchLabels
          : object.kind === 'NetworkPolicy'
            ? spec.podSelector.matchLabels
            : undefined
    if (!selector) continue
    const found = workloads.filter(workload =>
      podTemplates(workload).some(template => isSubset(selector, getLabels(workload, template)))
    )
    t.ok(found.length > 0, `${object.kind} ${object.metadata.name} selects existing pods`)
    for (const { targetPort } of object.kind === 'Service' ? spec.ports : []) {
      const ports = found.flatMap(workload => podTemplates(workload)).flatMap(({ spec }) => spec.containers[0].ports)
      t.ok(
        ports.some(({ name }) => name === targetPort),
        `${object.metadata.name}: the port ${targetPort}`
      )
    }
  }
  const { scaleTargetRef, triggers } = named('ScaledObject', 'corral-node').spec
  t.ok(named(scaleTargetRef.kind, scaleTargetRef.name), 'KEDA scales existing pods')
  const { url, valueLocation } = triggers[0].metadata
  t.equal(new URL(url).host, `${named('Service', 'corral').metadata.name}.corral.svc:11435`)
  const document = JSON.parse(readFileSync(join(packageRoot, 'docs', 'openapi.json'), 'utf8'))
  t.ok(document.paths[new URL(url).pathname].get, 'and asks an existing route …')
  t.equal(document.components.schemas.Cluster.properties[valueLocation].type, 'integer', '… for an existing field')
  const [{ name, key }] = named('TriggerAuthentication', triggers[0].authenticationRef.name).spec.secretTargetRef
  t.equal(`${name} ${key}`, 'corral-keys front')
  t.equal(named('StatefulSet', 'corral-node').spec.serviceName, 'corral-nodes')
  t.equal(parse(readManifest('base/front.yaml')).cluster.dns.name, 'corral-nodes', 'where gateways look for nodes')
  t.equal(named('Service', 'corral-nodes').spec.clusterIP, 'None')
})

t.test('pods match their image and have few rights', async t => {
  const dockerfile = readFileSync(join(packageRoot, 'Dockerfile'), 'utf8')
  const [, user, group] = /^USER (\d+):(\d+)$/m.exec(dockerfile)!
  const [, home] = /CORRAL_HOME=(\S+)/.exec(dockerfile)!
  for (const name of ['corral-node', 'corral-front']) {
    const { spec } = workloads.find(workload => workload.metadata.name === name)!.spec.template
    t.match(spec.securityContext, { runAsNonRoot: true, runAsUser: Number(user), runAsGroup: Number(group) })
    t.equal(spec.securityContext.fsGroup, Number(group))
    const [container] = spec.containers
    t.ok(
      container.volumeMounts.some(({ mountPath }: any) => mountPath === home),
      'its data is on a volume'
    )
    t.equal(container.securityContext.readOnlyRootFilesystem, true)
    t.match(dockerfile, new RegExp(`^EXPOSE ${container.ports[0].containerPort}$`, 'm'))
  }
  for (const workload of workloads) {
    for (const { spec } of podTemplates(workload)) {
      t.equal(spec.securityContext.runAsNonRoot, true, workload.metadata.name)
      for (const { securityContext } of spec.containers) {
        t.equal(securityContext.allowPrivilegeEscalation, false)
        t.same(securityContext.capabilities.drop, ['ALL'])
      }
    }
  }
})

t.test('pods have enough time for drain and shutdown', async t => {
  for (const [name, file] of [
    ['corral-node', 'node.yaml'],
    ['corral-front', 'front.yaml']
  ] as const) {
    const { spec } = workloads.find(workload => workload.metadata.name === name)!.spec.template
    const words = spec.containers[0].lifecycle.preStop.exec.command.join(' ')
    const timeout = parseDuration(/--timeout (\S+)/.exec(words)![1]!)!
    const slept = Number(/sleep (\d+)/.exec(words)?.[1] ?? 0) * 1000
    const grace = parseDuration(parse(readManifest(`base/${file}`)).shutdown_grace)!
    t.ok(spec.terminationGracePeriodSeconds * 1000 > timeout + slept + grace, name)
  }
})

t.test('Ray parses the resources of its nodes as JSON', async t => {
  const [{ rayStartParams }] = named('RayCluster', 'corral').spec.workerGroupSpecs
  // KubeRay inserts each value into a shell command without quoting.
  const words = execFileSync('bash', ['-c', `printf '%s' --resources=${rayStartParams.resources}`], {
    encoding: 'utf8'
  })
  t.same(JSON.parse(words.replace('--resources=', '')), { corral: 1 })
  const [worker] = named('RayCluster', 'corral').spec.workerGroupSpecs[0].template.spec.containers
  const { value } = worker.env.find(({ name }: any) => name === 'CORRAL_CLUSTER_MEMBER')
  const { home } = JSON.parse(value)
  t.same(
    worker.volumeMounts.map(({ mountPath }: any) => mountPath),
    [home],
    'a member has its data on the volume'
  )
  const dockerfile = readManifest('kuberay/Dockerfile')
  t.match(dockerfile, `rayproject/ray:${named('RayCluster', 'corral').spec.rayVersion}-`)
})

t.test('the endpoint picker reads metrics that corral has', async t => {
  const { plugins } = parse(readManifest('llm-d/picker.yaml'))
  const [engine] = plugins.find(({ type }: any) => type === 'core-metrics-extractor').parameters.engineConfigs
  const described = readFileSync(join(packageRoot, 'docs', 'monitoring.md'), 'utf8')
  const { name, ...specs } = engine
  t.equal(Object.keys(specs).length, 3)
  for (const metric of Object.values(specs)) t.ok(described.includes(`\`${metric}\``), `${metric}`)
  const { patch } = kustomizations.get('llm-d')!.patches.find(({ patch }: any) => patch.includes('engine-type'))
  t.equal(parse(patch)[0].value, name, 'pods have the label of that engine')
  t.equal(parse(readManifest('llm-d/node.yaml')).metrics.public, true, 'without a key')
})
