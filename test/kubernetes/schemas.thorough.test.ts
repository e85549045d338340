import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv, type ValidateFunction } from 'ajv'
import t from 'tap'
import { parse } from 'yaml'
import { MANIFESTS, OVERLAYS, parseObjects } from './manifests.ts'

/*
 * Validates the manifests against the published schemas of their kinds, from Go modules. Anything missing in a schema
 * is an error.
 */

t.setTimeout(600_000)

const KUBERNETES = 'k8s.io/kubernetes@v1.34.2'
const KUBERAY = 'github.com/ray-project/kuberay/ray-operator@v1.6.2'
const KEDA = 'github.com/kedacore/keda/v2@v2.18.1'
const INFERENCE_EXTENSION = 'sigs.k8s.io/gateway-api-inference-extension@v1.5.0'
const KUSTOMIZE = 'sigs.k8s.io/kustomize/kustomize/v5@v5.7.1'

const hasGo = spawnSync('go', ['version']).status === 0
const skip = hasGo ? false : 'THE KUBERNETES MANIFESTS ARE NOT CHECKED: there is no "go" on the PATH.'

/** The folder of a module. @throws if Go's module proxy cannot be reached */
function moduleFolder(module: string): string {
  const { status, stdout, stderr } = spawnSync('go', ['mod', 'download', '-json', module], { encoding: 'utf8' })
  const { Dir, Error: fault } = JSON.parse(stdout || '{}')
  if (status === 0 && Dir) return Dir
  throw new Error(`${module} is not available from Go's module proxy: ${fault ?? stderr}`)
}

/** Builds a kustomization, with kubectl if it is installed. */
function build(folder: string): any[] {
  const path = join(MANIFESTS, folder)
  const [program, ...words] =
    spawnSync('kubectl', ['version', '--client']).status === 0
      ? ['kubectl', 'kustomize', path]
      : ['go', 'run', KUSTOMIZE, 'build', path]
  const { status, stdout, stderr } = spawnSync(program!, words, { encoding: 'utf8', maxBuffer: 2 ** 26 })
  if (status !== 0) throw new Error(stderr)
  return parseObjects(stdout)
}

/** By default a schema allows unknown properties. */
function strict(schema: any): any {
  if (Array.isArray(schema)) return schema.map(strict)
  if (typeof schema !== 'object' || schema === null) return schema
  const made: any = {}
  for (const [key, value] of Object.entries(schema)) {
    // An OpenAPI default beside a reference is not valid JSON Schema, and "nullable" alone has no meaning in it.
    if (key === 'default' || key === 'nullable') continue
    made[key] = strict(value)
  }
  if (
    isObject(made.properties) &&
    made.additionalProperties === undefined &&
    made['x-kubernetes-preserve-unknown-fields'] !== true
  ) {
    made.additionalProperties = false
  }
  if (made['x-kubernetes-int-or-string']) delete made.type
  return made
}

const isObject = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value)

const ajv = () => new Ajv({ strict: false, logger: false, validateFormats: false, allErrors: true })

/** Validates against Kubernetes' OpenAPI documents. */
function kubernetesValidators() {
  const folder = join(moduleFolder(KUBERNETES), 'api', 'openapi-spec', 'v3')
  const found = new Map<string, ValidateFunction>()
  return (apiVersion: string, kind: string) => {
    const key = `${apiVersion}/${kind}`
    let validate = found.get(key)
    if (!validate) {
      const name = apiVersion.includes('/') ? `apis__${apiVersion.replace('/', '__')}` : `api__${apiVersion}`
      const file = join(folder, `${name}_openapi.json`)
      if (!existsSync(file)) return undefined
      const { components } = JSON.parse(readFileSync(file, 'utf8'))
      const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion]
      const [definition] =
        Object.entries<any>(components.schemas).find(([, schema]) =>
          schema['x-kubernetes-group-version-kind']?.some(
            (each: any) => each.group === group && each.version === version && each.kind === kind
          )
        ) ?? []
      if (!definition) return undefined
      validate = ajv().compile({ ...strict({ components }), $ref: `#/components/schemas/${definition}` })
      found.set(key, validate)
    }
    return validate
  }
}

/** Validates against the definition of a custom resource. */
function customValidator(file: string, version: string): ValidateFunction {
  const { spec } = parse(readFileSync(file, 'utf8'))
  const { schema } = spec.versions.find(({ name }: any) => name === version)
  const { properties, ...more } = schema.openAPIV3Schema
  const metadata = { type: 'object' }
  return ajv().compile({ ...strict({ ...more, properties: { ...properties, metadata } }) })
}

t.test('every object matches its schema and has no unknown properties', { skip }, async t => {
  const kubernetes = kubernetesValidators()
  const bases = (module: string) => join(moduleFolder(module), 'config', 'crd', 'bases')
  const custom: Record<string, ValidateFunction> = {
    ScaledObject: customValidator(join(bases(KEDA), 'keda.sh_scaledobjects.yaml'), 'v1alpha1'),
    TriggerAuthentication: customValidator(join(bases(KEDA), 'keda.sh_triggerauthentications.yaml'), 'v1alpha1'),
    RayCluster: customValidator(join(bases(KUBERAY), 'ray.io_rayclusters.yaml'), 'v1'),
    InferencePool: customValidator(
      join(bases(INFERENCE_EXTENSION), 'inference.networking.k8s.io_inferencepools.yaml'),
      'v1'
    )
  }
  const kinds = new Set<string>()
  const check = (object: any): string[] => {
    const validate = custom[object.kind] ?? kubernetes(object.apiVersion, object.kind)
    if (!validate) return [`no schema for ${object.apiVersion} ${object.kind}`]
    kinds.add(object.kind)
    validate(object)
    return (validate.errors ?? []).map(({ instancePath, message, params }) => {
      return `${object.kind} ${object.metadata.name}${instancePath}: ${message} ${JSON.stringify(params)}`
    })
  }
  const built = new Map(OVERLAYS.map(folder => [folder, build(folder)]))
  for (const [folder, objects] of built) {
    for (const object of objects) t.same(check(object), [], `${folder}: ${object.kind} ${object.metadata.name}`)
    const names = objects.map(({ kind, metadata }) => `${kind} ${metadata.namespace} ${metadata.name}`)
    t.equal(new Set(names).size, names.length, `${folder} creates nothing twice`)
    for (const { kind, metadata } of objects) {
      if (kind !== 'Namespace') t.equal(metadata.namespace, 'corral', `${folder}: ${kind} ${metadata.name}`)
    }
  }
  t.ok(kinds.size >= 9, [...kinds].join())

  const wrong = (folder: string, kind: string, change: (object: any) => void) => {
    const object = structuredClone(built.get(folder)!.find(each => each.kind === kind)!)
    change(object)
    return check(object)
  }
  /** Common errors that a lenient check would miss. */
  const mistakes: [string, string, (object: any) => void][] = [
    ['base', 'StatefulSet', ({ spec }) => (spec.template.spec.containers[0].readinessprobe = {})],
    ['base', 'StatefulSet', ({ spec }) => (spec.replicas = '3')],
    ['base', 'StatefulSet', ({ spec }) => delete spec.selector],
    ['base', 'Service', ({ spec }) => (spec.ports[0].port = 'http')],
    ['base', 'NetworkPolicy', ({ spec }) => (spec.egress[0].to[0].podselector = {})],
    ['base', 'PodDisruptionBudget', ({ spec }) => (spec.maxunavailable = 1)],
    ['kuberay', 'RayCluster', ({ spec }) => (spec.workerGroupSpecs[0].minReplica = 1)],
    ['kuberay', 'RayCluster', ({ spec }) => (spec.authOptions.mode = 'tokens')],
    ['kuberay', 'RayCluster', ({ spec }) => (spec.workerGroupSpecs[0].template.spec.containers[0].img = 'x')],
    ['keda', 'ScaledObject', ({ spec }) => (spec.minReplicas = 1)],
    ['keda', 'TriggerAuthentication', ({ spec }) => delete spec.secretTargetRef[0].parameter],
    ['llm-d', 'InferencePool', ({ spec }) => (spec.endpointPickerRef.failureMode = 'Open')]
  ]
  for (const [folder, kind, change] of mistakes) t.not(wrong(folder, kind, change).length, 0, `${change}`)
})

t.test('overlays change only what they are for', { skip }, async t => {
  const of = (folder: string, kind: string, name: string) =>
    build(folder).find(object => object.kind === kind && object.metadata.name === name)
  const [container] = of('nvidia', 'StatefulSet', 'corral-node').spec.template.spec.containers
  t.match(container, { image: /-cuda$/, resources: { limits: { 'nvidia.com/gpu': '1', memory: String } } })
  t.equal(container.lifecycle.preStop.exec.command[0], 'corral', 'everything else is as in the base')
  const asking = of('kuberay', 'Deployment', 'corral-front').spec.template.spec
  t.match(asking.containers[0], { image: /corral-ray:/, command: ['corral', 'serve'] })
  const variables = asking.containers[0].env.map(({ name }: any) => name)
  for (const name of ['RAY_AUTH_TOKEN', 'CORRAL_API_KEYS', 'CORRAL_HOME']) t.ok(variables.includes(name), name)
  t.notOk(variables.includes('CORRAL_CLUSTER_KEY'), 'members create their own keys there')
  t.equal(asking.securityContext.runAsUser, 1000)
  t.equal(asking.securityContext.runAsNonRoot, true, 'unchanged parts stay')
  t.equal(of('kuberay', 'StatefulSet', 'corral-node'), undefined)
  const scaled = of('keda', 'StatefulSet', 'corral-node').spec
  t.equal(scaled.replicas, undefined, 'kubectl apply does not undo what KEDA has set')
  t.same(scaled.template, of('base', 'StatefulSet', 'corral-node').spec.template)
  const behind = of('llm-d', 'StatefulSet', 'corral-node').spec.template
  t.equal(behind.metadata.labels['inference.networking.k8s.io/engine-type'], 'corral')
  t.equal(of('llm-d', 'Deployment', 'corral-front'), undefined)
  const { volumes } = behind.spec
  const map = volumes.find(({ name }: any) => name === 'config').configMap.name
  const { data } = build('llm-d').find(object => object.metadata.name === map)!
  t.equal(parse(data['config.yaml']).metrics.public, true, 'nodes have the settings of this overlay')
})
